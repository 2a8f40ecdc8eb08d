"""Convolution of stride 1 with large kernels by the discrete Fourier transform of overlapping tiles.

    V[f, tile, ic] = DFT of a tile of T×T pixels     f counts (T / 2 + 1) × T frequencies: pixels are real
    M[f, tile, oc] = Σ ic V · U                      one complex product a frequency
    y = epilogue(inverse DFT of M)                   T + 1 - kernel outputs an axis and tile

U is the conjugate of the kernel's transform, made when compiling. Two real columns are transformed as one
complex one. All of V is made first; then a task takes a panel of output channels for some rows of tiles.
Mathieu, Henaff and LeCun, Fast training of convolutional networks through FFTs (2014); overlap-save as in
Oppenheim and Schafer, Discrete-time signal processing, section 8.7.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.loops import Alloc, Body, Buffer, If, Prefetch, Program, Stmt, Store, loop, substitute
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, Layout
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import PREFETCHES, choose, nested, terms, whole_order
from .conv_parts import (
    DEPTH,
    LANE,
    LINE,
    ROW,
    VECTOR,
    Geometry,
    convolution,
    geometry,
    odd_lines,
    operands,
    weights_position,
)

SIZES = (16, 32)
LEAST_SPAN = 5  # of the kernel: below, Winograd's transforms are cheaper
PREFETCH = 64  # channels ahead: 4 KB of weights or more
N, TH, TW, IB, OB, OV, I, J, TB, TO = (
    Var(n) for n in ("n", "th", "tw", "ib", "ob", "ov", "i", "j", "tb", "to")
)
Pair = tuple[Expr, Expr]


@dataclass(frozen=True)
class Tiling:
    """Tiles of T×T pixels, of which `out` outputs each are right."""

    size: int
    out: tuple[int, int]
    count: tuple[int, int]

    @property
    def tiles(self) -> int:
        return self.count[0] * self.count[1]

    @property
    def half(self) -> int:
        """Frequencies along the height: the others are their conjugates."""
        return self.size // 2 + 1

    @property
    def frequencies(self) -> int:
        return self.half * self.size


@dataclass(frozen=True)
class Params:
    rows: int  # of tiles in one task of the products
    tile: int  # tiles of the register tile
    prefetch: int  # channels ahead of the arithmetic; 0: none
    together: int  # channels that one iteration takes
    frequencies_outer: bool  # whether all tiles take a frequency before the next one's turn
    input_order: tuple[str, ...]  # loops over tiles and vectors of channels that are transformed
    output_order: tuple[str, ...]


def spans(g: Geometry) -> tuple[int, int]:
    """Pixels that the kernel reaches over."""
    return (g.kernel[0] - 1) * g.dilations[0] + 1, (g.kernel[1] - 1) * g.dilations[1] + 1


def tiling(g: Geometry) -> Tiling:
    """The size of tiles that takes the fewest operations."""

    def of(size: int) -> Tiling:
        out = size + 1 - spans(g)[0], size + 1 - spans(g)[1]
        return Tiling(size, out, (-(-g.out[0] // out[0]), -(-g.out[1] // out[1])))

    return min((of(t) for t in SIZES if max(spans(g)) < t), key=lambda t: _operations(g, t))


def _operations(g: Geometry, t: Tiling) -> float:
    products = t.frequencies * 4 * g.channels * g.out_channels
    return t.tiles * (products / _rate(t) + _transforms(g, t))


def _rate(t: Tiling) -> float:
    """Of the products: two dependent multiply-adds of four cycles each bound few tiles."""
    return PRODUCT_RATE * min(1.0, t.tiles / 4)


def _transforms(g: Geometry, t: Tiling) -> float:
    """Time of both transforms of a tile, in multiply-adds of a lane."""
    return t.size**2 * (g.channels + g.out_channels) * TRANSFORM_COST[t.size]


def fits(op: FusedOp, lanes: int) -> bool:
    g = convolution(op)
    if g is None or g.group > 1 or g.strides != (1, 1):
        return False
    large = LEAST_SPAN <= max(spans(g)) < SIZES[-1] and g.taps >= LEAST_SPAN**2
    return large and g.channels % lanes == 0 and g.out_channels % lanes == 0


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    blocked, last = Layout.channel_blocked(4, lanes), Layout((0, 2, 3, 1))
    return ((blocked, blocked), (last, last))


def vectors_of(out_channels: int, lanes: int) -> int:
    """Vectors of output channels in a panel of weights: two where there are registers for them."""
    return 2 if lanes >= 16 and out_channels % (2 * lanes) == 0 else 1


def weights(op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    g = geometry(op)
    size, width = tiling(g).size, lanes * vectors_of(g.out_channels, lanes)
    return {weights_position(op): lambda w: pack_spectra(w, size, g.dilations, width)}


def pack_spectra(w: np.ndarray, size: int, dilations: tuple[int, int], width: int) -> np.ndarray:
    """(out channels, channels, *kernel) → U[panel, frequency, channel, (real, imaginary), width]."""
    out, channels, kh, kw = w.shape
    half = size // 2 + 1
    packed = np.empty((out // width, half * size, channels, 2, width), np.float32)
    for panel in range(out // width):
        tile = np.zeros((width, channels, size, size))
        taps = tile[
            :, :, : (kh - 1) * dilations[0] + 1 : dilations[0], : (kw - 1) * dilations[1] + 1 : dilations[1]
        ]
        taps[...] = w[panel * width : (panel + 1) * width]
        spectrum = np.fft.fft2(tile)[:, :, :half].conj() / (2 * size * size)  # half: of each pair of columns
        spectrum = spectrum.reshape(width, channels, half * size).transpose(2, 1, 0)
        packed[panel, :, :, 0], packed[panel, :, :, 1] = spectrum.real, spectrum.imag
    return packed


def work(op: FusedOp, lanes: int) -> Work:
    g = geometry(op)
    t = tiling(g)
    return Work(
        products=g.batch * t.tiles * t.frequencies * 4 * g.channels * g.out_channels,
        rate=_rate(t),
        streamed=8.0 * t.frequencies * g.channels * g.out_channels,
        other=g.batch * t.tiles * _transforms(g, t),
    )


PRODUCT_RATE = 0.8  # of the FMA peak
TRANSFORM_COST = {16: 40.0, 32: 60.0}  # multiply-adds a pixel and channel
ALGORITHMS = (Algorithm("fft", fits, layouts, weights, work, 4e-6),)


def matches(task: KernelTask) -> bool:
    return task.transformed == "fft"


def params(task: KernelTask, cfg: Config) -> Params:
    g, target = geometry(task.op), task.target
    t, lanes = tiling(g), target.lanes(4)
    vectors = vectors_of(g.out_channels, lanes)
    row_bytes = 8 * t.frequencies * t.count[1] * vectors * lanes
    options = [r for r in range(1, t.count[0] + 1) if r == 1 or r * row_bytes <= target.l2]
    rows = choose(cfg, "rows", options, options[-1])
    most = max(1, min((target.vector_registers - 2 * vectors - 2) // (2 * vectors), rows * t.count[1]))
    even = -(-rows * t.count[1] // -(-rows * t.count[1] // most))
    tile = choose(cfg, "tile", range(1, most + 1), even)
    inputs = {"th": t.count[0], "tw": t.count[1], "ib": g.channels // lanes}
    return Params(
        *(rows, tile, choose(cfg, "prefetch", PREFETCHES, PREFETCH)),
        terms(cfg, g.channels, 4 * tile * vectors, 1),
        choose(cfg, "frequencies_outer", (True, False) if rows * t.count[1] > tile else (True,), True),
        whole_order(cfg, "input_order", inputs),
        whole_order(cfg, "output_order", {"th": rows, "tw": t.count[1], "ov": vectors}),
    )


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        g = geometry(task.op)
        self.task, self.p, self.g, self.t = task, p, g, tiling(g)
        self.lanes = task.target.lanes(4)
        self.o = operands(task)
        self.vectors = self.o.weights.shape[-1] // self.lanes
        self.tiles = p.rows * self.t.count[1]  # of one task of the products
        self.row = odd_lines(2 * g.channels)
        self.v = Buffer("spectra", F32, (g.batch, self.t.frequencies, self.t.tiles, self.row), "global")
        m_row = odd_lines(2 * self.vectors * self.lanes)
        self.m = Buffer("products", F32, (self.t.frequencies, self.tiles, m_row), "scratch")

    def program(self) -> Program:
        g, t = self.g, self.t
        inputs = {"th": t.count[0], "tw": t.count[1], "ib": g.channels // self.lanes}
        tiles = nested(self.p.input_order, inputs, self.input_tile(), kind="parallel")
        first = loop("n", g.batch, *tiles, kind="parallel")
        body = Alloc(self.m, (self.product(), self.outputs()))
        second = loop("tb", -(-t.count[0] // self.p.rows), body, kind="parallel")
        second = loop(
            "n", g.batch, loop("ob", self.o.weights.shape[0], second, kind="parallel"), kind="parallel"
        )
        return Program(self.task.name, self.o.params, (first, second), (self.v,))

    # --- transforms -------------------------------------------------------------------------------------

    def input_tile(self) -> Body:
        """V of one tile and one vector of channels: columns two by two, then rows."""
        g, t = self.g, self.t
        n, middle = t.size, t.size // 2
        pixels = Buffer("pixels", F32, (n, n, self.lanes), "scratch")
        columns = Buffer("columns", F32, (t.half, n, 2, self.lanes), "scratch")
        h, w = TH * t.out[0] + I - g.pads[0], TW * t.out[1] + J - g.pads[1]
        pixel = g.guarded(self.o.read(N, IB * self.lanes + LANE, h, w), h, w)
        copy = loop("i", n, loop("j", n, self.lane_loop(Store("pixels", (I, J, LANE), pixel))))

        def both(i: int) -> Pair:
            at = s.const(i)
            return (
                Load("pixels", (at, J, LANE), F32),
                Load("pixels", (at, J + middle, LANE), F32),
            )

        def separate(spectrum: Callable[[int], Pair]) -> Body:
            stores: list[Stmt] = []
            for i in range(t.half):
                (zr, zi), (nr, ni) = spectrum(i), spectrum(-i % n)
                values = ((J, zr + nr, zi - ni), (J + middle, zi + ni, nr - zr))
                for column, real, imaginary in values:
                    stores.append(Store("columns", (s.const(i), column, s.const(0), LANE), real))
                    stores.append(Store("columns", (s.const(i), column, s.const(1), LANE), imaginary))
            return tuple(stores)

        tile = TH * t.count[1] + TW

        def keep(spectrum: Callable[[int], Pair]) -> Body:
            return tuple(
                Store("spectra", (N, I * n + j, tile, IB * self.lanes + LANE + part * g.channels), value)
                for j in range(n)
                for part, value in enumerate(spectrum(j))
            )

        def row(j: int) -> Pair:
            return _complex("columns", (I, s.const(j)))

        by_columns = loop("j", middle, self.dft(both, separate, -1))
        by_rows = loop("i", t.half, self.dft(row, keep, -1))
        return (Alloc(pixels, (Alloc(columns, (copy, by_columns, by_rows)),)),)

    def outputs(self) -> Stmt:
        """The inverse transform and the epilogue for all tiles of a task."""
        t = self.t
        n, pairs = t.size, -(-t.out[1] // 2)
        columns = Buffer("columns_out", F32, (t.half, 2 * pairs, 2, self.lanes), "scratch")
        result = Buffer("tile_out", F32, (t.out[0], 2 * pairs, self.lanes), "scratch")
        tile = TH * t.count[1] + TW
        channel = OV * self.lanes + LANE

        def row(j: int) -> Pair:
            at = I * n + j
            real = Load("products", (at, tile, channel), F32)
            return real, Load("products", (at, tile, channel + self.vectors * self.lanes), F32)

        def keep(values: Callable[[int], Pair]) -> Body:
            return tuple(
                Store("columns_out", (I, s.const(j), s.const(part), LANE), value)
                for j in range(2 * pairs)
                for part, value in enumerate(values(j))
            )

        def both(i: int) -> Pair:
            """Two columns of half their frequencies as one complex column of all."""
            at = s.const(min(i, n - i))
            (ar, ai), (br, bi) = _complex("columns_out", (at, J)), _complex("columns_out", (at, J + pairs))
            if i % (n // 2) == 0:  # real
                return ar, br
            return (ar - bi, ai + br) if i < n // 2 else (ar + bi, br - ai)

        def split(values: Callable[[int], Pair]) -> Body:
            return tuple(
                Store("tile_out", (s.const(i), column, LANE), value)
                for i in range(t.out[0])
                for column, value in zip((J, J + pairs), values(i))
            )

        by_rows = loop("i", t.half, self.dft(row, keep, 1))
        by_columns = loop("j", pairs, self.dft(both, split, 1))
        body: Body = (Alloc(columns, (Alloc(result, (by_rows, by_columns, self.write())),)),)
        if t.count[0] % self.p.rows:
            body = (If(s.lt(self.top() + TH, t.count[0]), body),)
        extents = {"th": self.p.rows, "tw": t.count[1], "ov": self.vectors}
        return nested(self.p.output_order, extents, body)[0]

    def top(self) -> Expr:
        """The first row of tiles of a task."""
        return TB * self.p.rows

    def write(self) -> Stmt:
        g, t = self.g, self.t
        h, w = (self.top() + TH) * t.out[0] + I, TW * t.out[1] + J
        channel = (OB * self.vectors + OV) * self.lanes + LANE
        sums = Load("tile_out", (I, J, LANE), F32)
        body: Stmt = self.lane_loop(*self.o.write((N, channel, h, w), sums))
        if g.out[1] % t.out[1]:
            body = If(s.lt(w, g.out[1]), (body,))
        rows: Stmt = loop("j", t.out[1], body)
        if g.out[0] % t.out[0] or t.count[0] % self.p.rows:
            rows = If(s.lt(h, g.out[0]), (rows,))
        return loop("i", t.out[0], rows)

    def dft(self, load: Callable[[int], Pair], finish: Callable[..., Body], sign: int) -> Stmt:
        """Σ j load(j) · exp(sign · 2πi · jk / T) for all k, in butterflies of two; `finish` is given them."""
        n = self.t.size
        levels = n.bit_length() - 1
        work = Buffer("butterflies", F32, (levels + 1, n, 2, self.lanes), "register")
        stores: list[Stmt] = []

        def at(level: int, k: int) -> Pair:
            return _complex("butterflies", (s.const(level), s.const(k)))

        def put(level: int, k: int, value: Pair) -> None:
            for part in (0, 1):
                index = (s.const(level), s.const(k), s.const(part), LANE)
                stores.append(Store("butterflies", index, value[part]))

        for j in range(n):
            put(0, int(f"{j:0{levels}b}"[::-1], 2), load(j))
        for first in range(0, levels, 2):  # two levels at a time, in registers
            both = range(first, min(first + 2, levels))
            group = 1 << len(both)
            for k in range(n):
                if k & ((group - 1) << first):
                    continue
                members = [k + (m << first) for m in range(group)]
                for level in both:
                    half = 1 << level
                    for m in members:
                        if not m & half:
                            factor = cmath.exp(sign * 1j * cmath.pi * (m % half) / half)
                            above, below = _butterfly(at(level, m), at(level, m + half), factor)
                            put(level + 1, m, above)
                            put(level + 1, m + half, below)
        return Alloc(work, (self.lane_loop(*stores, *finish(lambda k: at(levels, k))),))

    def lane_loop(self, *body: Stmt) -> Stmt:
        return loop("lane", self.lanes, *body, kind="vector")

    # --- product ----------------------------------------------------------------------------------------

    def product(self) -> Stmt:
        """M of all frequencies for the task's tiles and one panel of output channels."""
        g, t, p = self.g, self.t, self.p
        width = self.vectors * self.lanes
        acc = Buffer("tile_acc", F32, (p.tile, self.vectors, 2, self.lanes), "register")
        tile = TO * p.tile + ROW
        place = self.top() * t.count[1] + tile
        inside = [s.lt(tile, self.tiles)] if self.tiles % p.tile else []
        inside += [s.lt(place, t.tiles)] if t.count[0] % p.rows else []

        def over(*body: Stmt) -> Stmt:
            return loop(
                "ri", p.tile, loop("vi", self.vectors, self.lane_loop(*body), kind="unroll"), kind="unroll"
            )

        def spectrum(part: int) -> Expr:
            value = Load("spectra", (N, I, place, DEPTH + part * g.channels), F32)
            return s.select(s.both(*inside), value, s.const(0.0, F32)) if inside else value

        def sums(part: int) -> Load:
            return Load("tile_acc", (ROW, VECTOR, s.const(part), LANE), F32)

        def weight(part: int) -> Load:
            index = (OB, I, DEPTH, s.const(part), VECTOR * self.lanes + LANE)
            return Load(self.o.weights.name, index, F32)

        zero = [Store("tile_acc", sums(part).index, s.const(0.0, F32)) for part in (0, 1)]
        real = sums(0) + spectrum(0) * weight(0) + -spectrum(1) * weight(1)  # multiply-adds
        imaginary = sums(1) + spectrum(0) * weight(1) + spectrum(1) * weight(0)
        update = [Store("tile_acc", sums(0).index, real), Store("tile_acc", sums(1).index, imaginary)]
        out: Body = tuple(
            Store("products", (I, tile, VECTOR * self.lanes + LANE + part * width), sums(part))
            for part in (0, 1)
        )
        kept = out if not inside else (If(s.both(*inside), out),)
        ahead: Body = ()
        if p.prefetch:
            ahead = tuple(
                Prefetch(self.o.weights.name, (OB, I, DEPTH + p.prefetch, s.const(0), s.const(line)))
                for line in range(0, 2 * width, LINE)
            )
        body = (over(*zero), self.in_turn(over(*update), ahead), over(*kept))
        extents = {"i": t.frequencies, "to": -(-self.tiles // p.tile)}
        order = ("i", "to") if p.frequencies_outer else ("to", "i")
        return nested(order, extents, (Alloc(acc, body),))[0]

    def in_turn(self, update: Stmt, ahead: Body) -> Stmt:
        """The updates of all channels, some in one iteration."""
        some = self.p.together
        if some == 1:
            return loop("k", self.g.channels, update, *ahead)
        several = substitute((update, *ahead), {"k": DEPTH * some + Var("ki")})
        return loop("k", self.g.channels // some, loop("ki", some, *several, kind="unroll"))


def _complex(buffer: str, index: tuple[Expr, ...]) -> Pair:
    return Load(buffer, (*index, s.const(0), LANE), F32), Load(buffer, (*index, s.const(1), LANE), F32)


def _butterfly(a: Pair, b: Pair, factor: complex) -> tuple[Pair, Pair]:
    """a ± factor · b; factors of 1 and ±i take no product."""
    (ar, ai), (br, bi) = a, b
    c, d = factor.real, factor.imag
    if abs(d) < 1e-9:
        return (ar + br, ai + bi), (ar - br, ai - bi)
    if abs(c) < 1e-9:
        above, below = (ar - bi, ai + br), (ar + bi, ai - br)
        return (above, below) if d > 0 else (below, above)
    cos, sin = s.const(float(np.float32(c)), F32), s.const(float(np.float32(d)), F32)
    tr, ti = -bi * sin + br * cos, bi * cos + br * sin
    return (ar + tr, ai + ti), (ar - tr, ai - ti)
