"""What each axis of a sum of products is for, and the register tiles that suit it: pixels × columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..target import Target

ACC = "tile_acc"
LONG_CODE = 1.03  # cost of a tile whose taps are unrolled over both pixel axes, relative
NEAR = 128  # bytes that a tile of pooling reads of a row, before it reads the next: more are no stream
SCATTERED = 2.0  # cost of a tile of pooling that reads more, relative
WORD = 3.0  # cycles in which a vector of words is made of bytes
UNPACKING = 2  # registers for each vector of weights that is being made of several
SPARE = 2  # registers that are left for the scheduling of loads
MAX_UNROLLED = 640  # updates of the register tile in one loop body


@dataclass(frozen=True)
class Roles:
    """What each axis of the accumulator is for."""

    vector: str
    column: str | None  # blocks of the vector axis or its outer part: weights change, inputs do not
    pixels: tuple[str, ...]  # inputs change, weights do not; innermost first
    batch: tuple[str, ...]  # both change
    taps: tuple[str, ...]  # reduction axes that slide over a pixel axis
    sums: tuple[str, ...]  # the other reduction axes


@dataclass(frozen=True)
class Params:
    tile: tuple[tuple[str, int], ...]  # register tile: axis → size
    cuts: tuple[tuple[str, int], ...]  # outer loops in cache blocks of so many iterations
    order: tuple[str, ...]  # outer loops, those over blocks (`_b`) among them; outermost first
    dealt: int  # of these, how many are tasks
    reduction: tuple[str, ...]  # loop order, outermost first
    unrolled: tuple[str, ...]  # of these, taps that are written out
    together: tuple[str, int]  # loop over a sum of which one iteration takes so many terms
    block: tuple[tuple[str, int], ...]  # reduction axes split by the input's channel block
    prefetch: int  # cache lines of weights ahead of the arithmetic; 0: none
    ahead: int  # channel blocks of the input that are prefetched before they are needed; 0: none
    panel: bool  # whether the next columns' weights are prefetched, a share with every tile


def roles_of(expr: TensorExpr, target: Target, outer: tuple[str, ...] = ()) -> Roles | None:
    """The roles of the accumulator's axes; those named in `outer` are batch axes, outside of all others."""
    acc = expr.stage(ACC)
    assert acc.reduce is not None
    vector = acc.axes[-1].name
    loads = s.loads(acc.body)
    wide = [s.variables(ld) for ld in loads if vector in s.variables(ld)]
    narrow = [s.variables(ld) for ld in loads if vector not in s.variables(ld)]
    if not wide:
        return None
    column, pixels, batch = None, [], []
    for axis in reversed(acc.axes[:-1]):
        if axis.name in outer:
            continue
        in_wide = any(axis.name in names for names in wide)
        in_narrow = any(axis.name in names for names in narrow)
        if (
            in_wide
            and not in_narrow
            and narrow
            and column is None
            and acc.axes[-1].extent == lanes_of(acc, target)
        ):
            column = axis.name
        elif (in_narrow and not in_wide) or (not narrow and _slides(acc, axis.name)):
            pixels.append(axis.name)
        else:
            batch.append(axis.name)
    taps = tuple(a.name for a in acc.reduce.axes if any(slides_with(acc, a.name, p) for p in pixels))
    sums = tuple(a.name for a in acc.reduce.axes if a.name not in taps)
    outside = tuple(a.name for a in acc.axes if a.name in outer)
    return Roles(vector, column, tuple(pixels), (*outside, *reversed(batch)), taps, sums)


def slides_with(acc: Stage, tap: str, pixel: str) -> bool:
    """Whether some index mixes the two axes, as h·stride + kh does."""
    for load in s.loads(acc.body):
        for e in load.index:
            if {tap, pixel} <= s.variables(e):
                return True
    return False


def _slides(acc: Stage, pixel: str) -> bool:
    assert acc.reduce is not None
    return any(slides_with(acc, a.name, pixel) for a in acc.reduce.axes)


@dataclass(frozen=True)
class Row:
    """What the pixels of a row read lies side by side in memory: those of pixel n begin at n · step."""

    tap: str | None
    taps: int
    step: int

    def vectors(self, pixels: int, lanes: int) -> int:
        """That hold what so many pixels read."""
        return -(-((pixels - 1) * self.step + self.taps) // lanes)


def row_of(acc: Stage, roles: Roles, target: Target) -> Row | None:
    """Of the pixels of a tile; None where they are further apart, where what a pixel reads does not fit a few
    registers, and where multiply-adds take no lanes.
    """
    narrow = [ld for ld in s.loads(acc.body) if roles.vector not in s.variables(ld)]
    if not target.multiplies_by_lane or not roles.pixels or len(narrow) != 1:
        return None
    place = affine.linear(narrow[0].index[-1])
    step = place.coefficient(roles.pixels[0])
    assert acc.reduce is not None
    extents = {a.name: a.extent for a in acc.reduce.axes}
    tap = next((t for t in roles.taps if place.coefficient(t) == 1), None)
    taps = extents[tap] if tap else 1
    short = -(-taps // lanes_of(acc, target)) <= target.vector_registers // 8
    return Row(tap, taps, step) if 1 <= step <= taps and short else None


def lanes_of(acc: Stage, target: Target) -> int:
    return target.lanes(max(acc.dtype.bytes, 4))


def most_rows(target: Target, vectors: int) -> int:
    """Rows of a product whose sums, one row of weights and one factor, or a vector of them for each row, fit
    the registers.
    """
    if target.multiplies_by_lane:
        return (target.vector_registers - vectors - SPARE) // (vectors + 1)
    return (target.vector_registers - vectors - 1) // vectors


def rank_tiles(
    acc: Stage, roles: Roles, extents: dict[str, int], target: Target
) -> list[tuple[tuple[str, int], ...]]:
    """Register tiles by estimated cycles for the whole output, best first."""
    if makes_words(acc):
        return _rank_rows_of_words(acc, roles, extents, target)
    lanes = lanes_of(acc, target)
    row = row_of(acc, roles, target)
    by_lane = target.multiplies_by_lane and bool(roles.sums or row)
    alone = len(s.loads(acc.body)) == 1  # no products: half of the registers hide latencies; maxima need more
    step = _step(acc, roles, target) if alone else 0
    vectors = -(-extents[roles.vector] // lanes)  # registers that one step of the vector axis takes
    made_of = unpacked_of(acc, roles)
    found: list[tuple[float, tuple[tuple[str, int], ...]]] = []
    first = roles.pixels[0] if roles.pixels else None
    second = roles.pixels[1] if len(roles.pixels) > 1 else None
    column_axis = roles.column or (roles.vector if extents[roles.vector] != lanes else None)
    column_count = extents[roles.column] if roles.column else vectors
    for columns in range(1, min(8, column_count) + 1):
        if columns > 1 and column_axis is None:
            break
        for rows in range(1, min(8, extents[second]) + 1 if second else 2):
            for width in range(1, min(28, extents[first]) + 1 if first else 2):
                accumulators = rows * width * columns
                held = columns if rows * width > 1 else 1  # what is used once need not stay in a register
                if made_of > 1:
                    held = (made_of + UNPACKING) * columns
                vectors_read = rows * (row.vectors(width, lanes) if row else width)  # or one of terms a pixel
                inputs = vectors_read + SPARE if by_lane else 1
                if alone:
                    held = accumulators - 1
                spare = target.vector_registers - (accumulators + held + inputs)
                windows = rows > 1 and bool(roles.taps)  # both axes of taps unrolled
                if spare < windows or _too_long(acc, roles, extents, accumulators, rows):
                    continue
                tile = [
                    (axis, n) for axis, n in ((column_axis, columns), (second, rows), (first, width)) if axis
                ]
                if column_axis == roles.vector:
                    tile[0] = (roles.vector, columns * lanes)
                cost = _cost(
                    (column_count, columns),
                    (extents.get(second or "", 1), rows),
                    (extents.get(first or "", 1), width),
                    target.multiply_adds,
                    lanes if by_lane else 1,
                    row,
                ) * (LONG_CODE if windows else 1)
                if width * step > NEAR:
                    cost *= SCATTERED
                found.append((cost, tuple(tile)))
    found.sort(key=lambda f: (round(f[0], 6), -math.prod(n for _, n in f[1])))
    return [tile for _, tile in found] or [()]


def unpacked_of(acc: Stage, roles: Roles) -> int:
    """How many vectors one of weights is made of: 1 where it is read."""
    loads = s.loads(acc.body)
    wide = sum(1 for ld in loads if roles.vector in s.variables(ld))
    return wide if wide < len(loads) else 1


def shares_vectors(acc: Stage, roles: Roles, axis: str) -> bool:
    """Whether neighbours along a sum find their weights in the same vectors, as numbers in parts of bytes."""
    wide = [ld for ld in s.loads(acc.body) if roles.vector in s.variables(ld)]
    return unpacked_of(acc, roles) > 1 and not any(axis in s.variables(ld) for ld in wide)


def makes_words(acc: Stage) -> bool:
    """Whether words are made of bytes where they are multiplied; taps share them, in registers."""
    return any(isinstance(e, s.Call) and e.op == "word" for e in s.walk(acc.body))


def _rank_rows_of_words(
    acc: Stage, roles: Roles, extents: dict[str, int], target: Target
) -> list[tuple[tuple[str, int], ...]]:
    """Neighbours along the innermost pixel axis: the more, the more often a word is multiplied. One vector
    each, of whatever axis they lie along."""
    lanes = lanes_of(acc, target)
    vector = ((roles.vector, lanes),) if extents[roles.vector] != lanes else ()
    if not roles.pixels:
        return [vector]
    row = roles.pixels[0]
    place = next(e for ld in s.loads(acc.body) for e in ld.index if row in s.variables(e))
    steps = affine.linear(place)
    assert acc.reduce is not None
    taps = [a for a in acc.reduce.axes if steps.coefficient(a.name)]
    reach = {0}
    for a in taps:
        reach = {r + n * steps.coefficient(a.name) for r in reach for n in range(a.extent)}

    def words(pixels: int) -> int:
        return len({n * steps.coefficient(row) + r for n in range(pixels) for r in reach})

    found: list[tuple[float, int]] = []
    for width in range(1, min(28, extents[row]) + 1):
        if width == 1 or width + words(width) + len(reach) <= target.vector_registers:
            cycles = sum(
                n * (words(w) * WORD + w * len(reach) / target.multiply_adds)
                for n, w in _pieces(extents[row], width)
            )
            found.append((cycles, width))
    return [(*vector, (row, width)) for _, width in sorted(found)]


def _step(acc: Stage, roles: Roles, target: Target) -> int:
    """Bytes from what a pixel reads to what the next one does, if all pixels of a row lie side by side."""
    (load,) = s.loads(acc.body)
    if not roles.pixels or len(load.index) < 2 or roles.vector not in s.variables(load.index[-1]):
        return 0
    step = affine.linear(load.index[-2]).coefficient(roles.pixels[0])
    return abs(step) * lanes_of(acc, target) * acc.dtype.bytes


def _too_long(acc: Stage, roles: Roles, extents: dict[str, int], accumulators: int, rows: int) -> bool:
    taps = roles.taps if rows > 1 else roles.taps[-1:]
    return accumulators * math.prod(extents[t] for t in taps) > MAX_UNROLLED and rows > 1


def _cost(
    columns: tuple[int, int],
    rows: tuple[int, int],
    width: tuple[int, int],
    multiply_adds: float,
    terms: int,
    row: Row | None,
) -> float:
    """Cycles of one reduction step over the whole output: two loads a cycle, latency of four.

    One load brings an input for so many `terms`, or for neighbours in a `row`; where that is several, loads
    are instructions of their own.
    """
    total = 0.0
    for n_columns, c in _pieces(*columns):
        for n_rows, r in _pieces(*rows):
            for n_width, w in _pieces(*width):
                fmas = r * w * c
                loads = r * (row.vectors(w, terms) / row.taps if row else w / terms) + c
                cycles = max(fmas / multiply_adds, loads / 2, 4.0) + (loads / 4 if terms > 1 else 0.0)
                total += n_columns * n_rows * n_width * (cycles + 0.75)
    return total


def _pieces(extent: int, size: int) -> list[tuple[int, int]]:
    """(how many, of which size): the full tiles and the last one."""
    full, rest = divmod(extent, size)
    return [(full, size)] * bool(full) + [(1, rest)] * bool(rest)
