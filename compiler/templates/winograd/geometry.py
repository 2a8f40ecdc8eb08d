"""How Winograd's algorithm covers a convolution: phases of the input, tiles of the output, classes of points.

A convolution of stride 2 is a sum of convolutions of stride 1 over the input's phases, which all share one
inverse transform: M = Σ phases V · U. Odd phases have a tap less: nothing is to be done at infinity.

    kernel 3, stride 2:  y = x[0::2] * (g0, g2) + x[1::2] * (g1)

Where tiles do not divide the output, its edge takes smaller tiles on a subset of the points (`Band`), with
the same weights. Tiles are ordered so that those of any point are one range:

    right edge | full tiles | bottom edge | corner
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np

from ...ir.types import F32
from ...ops.conv import Conv
from ...ops.fused import FusedOp
from ...ops.toom_cook import Band, Transform, band, transform

UNBOUNDED = 1 << 31
VECTORS = 2  # of output channels in a panel of weights


@dataclass(frozen=True)
class Variant:
    """An algorithm: square kernels of one size and stride, on tiles of m² outputs.

    `error` is a bound for any number of channels. Many points amplify the rounding of long sums: there at
    most `depth` products are added up one after the other, and then their sums.
    """

    name: str
    m: int
    kernel: int
    stride: int
    error: float
    depth: int = UNBOUNDED

    @property
    def taps(self) -> int:
        """Of the longest phase."""
        return -(-self.kernel // self.stride)

    @property
    def transform(self) -> Transform:
        return transform(self.m, self.taps)

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """(row, column) offsets, in an order that makes the phases of any point one range."""
        return ((0, 0),) if self.stride == 1 else ((0, 1), (0, 0), (1, 0), (1, 1))


VARIANTS = {  # errors: docs/performance.md
    v.name: v
    for v in (
        Variant("winograd2", 2, 3, 1, 2e-6),
        Variant("winograd4", 4, 3, 1, 4e-6, 512),
        Variant("winograd6", 6, 3, 1, 1e-5, 64),
        Variant("winograd2_5x5", 2, 5, 1, 4e-6, 512),
        Variant("winograd4_5x5", 4, 5, 1, 1e-5, 64),
        Variant("polyphase2", 2, 3, 2, 2e-6),
        Variant("polyphase3", 3, 3, 2, 2e-6),
    )
}


@dataclass(frozen=True)
class Strip:
    """Tiles side by side along one axis: `count` of them, the first at position `first`."""

    band: Band
    first: int
    count: int


@dataclass(frozen=True)
class Region:
    """Tiles that are rows × columns of an image; `base` is the first one's number."""

    rows: Strip
    columns: Strip
    base: int

    @property
    def count(self) -> int:
        return self.rows.count * self.columns.count


@dataclass(frozen=True)
class PointClass:
    """Neighbouring points with the same tiles and phases; `weights` elements of U come before theirs."""

    first: int
    count: int
    tiles: range
    phases: range
    weights: int


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution. `channels` fill whole vectors of `lanes`, beyond the `given_channels` of the
    image, `out_channels` whole panels of weights, beyond the `out_vectors` of the result.
    """

    variant: Variant
    lanes: int
    batch: int
    channels: int
    out_channels: int
    out_vectors: int
    height: int
    width: int
    out_height: int
    out_width: int
    pad_top: int
    pad_left: int
    given_channels: int

    @property
    def tile_rows(self) -> int:
        return -(-self.out_height // self.variant.m)

    @property
    def tile_columns(self) -> int:
        return -(-self.out_width // self.variant.m)

    @property
    def tiles(self) -> int:
        """Of one image."""
        return self.tile_rows * self.tile_columns

    def strips(self, size: int) -> tuple[Strip, Strip]:
        """Full tiles and the edge, either of which may be empty."""
        v = self.variant
        full, rest = divmod(size, v.m)
        return Strip(band(v.m, v.taps, v.m), 0, full), Strip(
            band(v.m, v.taps, rest or 1), full, int(rest > 0)
        )

    def regions(self, images: int, rows: tuple[Strip, Strip] | None = None) -> tuple[Region, ...]:
        """Those that are not empty, in order; `images` are tiled together."""
        row_strips, columns = rows or self.strips(self.out_height), self.strips(self.out_width)
        found: list[Region] = []
        base = 0
        for r, c in ((0, 1), (0, 0), (1, 0), (1, 1)):
            region = Region(row_strips[r], columns[c], base)
            base += region.count * images
            found += [region] if region.count else []
        return tuple(found)

    @cached_property
    def points(self) -> tuple[tuple[int, int], ...]:
        """Points that some tile uses, neighbours alike in the tiles and phases that use them."""
        n = self.variant.transform.n
        every = [(i, j) for i in range(n) for j in range(n)]
        used = [p for p in every if any(_uses(r, p) for r in self.regions(1))]
        return tuple(sorted(used, key=self._kind))

    def _kind(self, point: tuple[int, int]) -> tuple[bool, ...]:
        edges = tuple(p not in s[1].band.points for p, s in zip(point, self._axes()) if s[1].count)
        return (*edges, *self._at_infinity(point))

    def _axes(self) -> tuple[tuple[Strip, Strip], ...]:
        return self.strips(self.out_height), self.strips(self.out_width)

    def _at_infinity(self, point: tuple[int, int]) -> tuple[bool, bool]:
        """Whether the phases with a tap less are zero there."""
        last = self.variant.transform.n - 1 if self.variant.stride > 1 else -1
        return point[0] == last, point[1] == last

    def classes(self, regions: tuple[Region, ...], images: int) -> Iterator[PointClass]:
        weights = first = 0
        for _, group in groupby(self.points, self._kind):
            members = list(group)
            using = [r for r in regions if _uses(r, members[0])]
            tiles = range(using[0].base, using[-1].base + using[-1].count * images)
            row, column = self._at_infinity(members[0])
            phases = range(int(column), len(self.variant.phases) - (2 if row else int(column)))
            yield PointClass(first, len(members), tiles, phases, weights)
            first += len(members)
            weights += len(members) * len(phases) * self.channels * self.out_channels

    @cached_property
    def coefficients(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Of the kernel's taps: by point and phase, U's order (`TapTransform`)."""
        v, t = self.variant, self.variant.transform
        found = []
        for c in self.classes(self.regions(1), 1):
            for i, j in self.points[c.first : c.first + c.count]:
                phases = []
                for f in c.phases:
                    taps = np.zeros((v.kernel, v.kernel))
                    row, column = v.phases[f]
                    part = taps[row :: v.stride, column :: v.stride]
                    part[:] = np.outer(t.g[i, : part.shape[0]], t.g[j, : part.shape[1]])
                    phases.append(tuple(taps.ravel().tolist()))
                found.append(tuple(phases))
        return tuple(found)


def _uses(region: Region, point: tuple[int, int]) -> bool:
    return point[0] in region.rows.band.points and point[1] in region.columns.band.points


def convolution(op: object) -> tuple[Conv, int] | None:
    """The f32 convolution that a fused operator begins with, and its square kernel's size; else None."""
    if not isinstance(op, FusedOp):
        return None
    first = op.graph.nodes[0]
    conv = first.op
    if not isinstance(conv, Conv) or op.graph.types[first.outputs[0]].dtype is not F32 or conv.group != 1:
        return None
    if set(conv.dilations) != {1} or len(set(conv.strides)) > 1:
        return None
    kernel = op.graph.types[first.inputs[1] or ""].dims[2:]
    return (conv, kernel[0]) if len(kernel) == 2 and kernel[0] == kernel[1] else None


def suits(op: FusedOp, variant: Variant) -> bool:
    found = convolution(op)
    return found is not None and (found[1], found[0].strides[0]) == (variant.kernel, variant.stride)


def geometry(op: FusedOp, variant: Variant, lanes: int) -> Geometry:
    node = op.graph.nodes[0]
    assert isinstance(node.op, Conv)
    batch, channels, height, width = op.graph.types[node.inputs[0] or ""].dims
    _, out_channels, out_height, out_width = op.graph.types[node.outputs[0]].dims
    panel, vectors = VECTORS * lanes, -(-out_channels // lanes)
    counts = (batch, -(-channels // lanes) * lanes, -(-out_channels // panel) * panel, vectors)
    sizes = (height, width, out_height, out_width)
    return _geometry(variant, lanes, *counts, *sizes, node.op.pads[0], node.op.pads[1], channels)


_geometry = lru_cache(maxsize=256)(Geometry)  # a planner asks for the same sizes again and again
