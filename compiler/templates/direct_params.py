"""What the direct template asks: register tile, cache blocks, orders of loops, unrolling, prefetches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from types import MappingProxyType

from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..ir.scalar import Binary, Select
from ..kernel_task import Config, KernelTask
from .choices import (
    LONGEST_BODY,
    PREFETCHES,
    cache_blocks,
    choose,
    combination,
    dealt_loops,
    divisors,
    loop_order,
    whole_order,
)
from .prefetch import blocks_ahead, panel_bytes, weight_bytes
from .register_tiles import (
    ACC,
    MAX_UNROLLED,
    Params,
    Roles,
    Row,
    lanes_of,
    rank_tiles,
    row_of,
    shares_vectors,
    slides_with,
)

ENOUGH_TASKS = 8  # for every thread; with fewer, the innermost loop over pixels is dealt too
LONGEST_CODE = 1000  # in all versions of a body, of about 16 bytes each: half of a first-level cache
LONGEST_SHORT_SUM = 16  # terms beside the taps
TERMS = (1, 2, 4, 8, 16)  # of a sum in one iteration


@dataclass(frozen=True)
class Subject:
    """An expression in the form that `direct.expression` gives, and what every choice about it starts from.

    Loops over the axes in `outermost` are neither moved nor cut.
    """

    task: KernelTask
    expr: TensorExpr
    roles: Roles
    outermost: tuple[str, ...] = ()

    @cached_property
    def acc(self) -> Stage:
        return self.expr.stage(ACC)

    @cached_property
    def extents(self) -> dict[str, int]:
        return {a.name: a.extent for a in self.acc.all_axes}

    @cached_property
    def tiles(self) -> list[tuple[tuple[str, int], ...]]:
        """Register tiles to choose from, the best first; others only if their code is short."""
        best, *others = rank_tiles(self.acc, self.roles, self.extents, self.task.target)
        return [best, *(t for t in others if self.short(dict(t), self.tiled_taps(dict(t))))]

    @cached_property
    def block(self) -> tuple[tuple[str, int], ...]:
        """Reduction axes split by the input's channel block."""
        return tuple((a, b) for a in self.roles.sums if (b := _channel_block(self.acc, a)) > 1)

    @cached_property
    def row(self) -> Row | None:
        return row_of(self.acc, self.roles, self.task.target)

    @cached_property
    def slides(self) -> frozenset[tuple[str, str]]:
        """(tap, pixel axis) that an index mixes."""
        pairs = product(self.roles.taps, self.roles.pixels)
        return frozenset(pair for pair in pairs if slides_with(self.acc, *pair))

    @cached_property
    def weight_bytes(self) -> int:
        return weight_bytes(self.task, self.expr)

    @cached_property
    def rows_outer(self) -> bool:
        """Whether what all columns read is too large to be read once for each: all columns then take a row of
        pixels before the next row's turn, if what they alone read is small.
        """
        if self.outermost or len(self.roles.pixels) < 2:
            return False
        wide = {ld.tensor for ld in s.loads(self.acc.body) if self.roles.vector in s.variables(ld)}
        sizes = {name: type.size * type.dtype.bytes for name, type in self.expr.params}
        sizes.update({st.name: st.type.size * st.dtype.bytes for st in self.expr.stages})
        read = {ld.tensor for ld in s.loads(self.acc.body)}
        l2 = self.task.target.l2
        return sum(sizes[n] for n in read - wide) > l2 and sum(sizes[n] for n in wide) <= l2 // 2

    @cached_property
    def padded(self) -> bool:
        """Whether taps may read what is outside of the image."""
        return any(isinstance(e, Select) for e in s.walk(self.acc.body))

    def tiled_taps(self, tile: Mapping[str, int]) -> tuple[str, ...]:
        """Those over pixels of the register tile: what they read, and skip, differs from pixel to pixel. Not
        those that are too many to be written out.
        """
        tiled = [p for p in self.roles.pixels if tile.get(p, 1) > 1]
        found = [t for t in self.roles.taps if any((t, p) in self.slides for p in tiled)]
        while self._updates(tile, found) > MAX_UNROLLED and found:
            found.remove(max(found, key=self.extents.__getitem__))
        return tuple(found)

    def _updates(self, tile: Mapping[str, int], unrolled: Iterable[str]) -> int:
        """Of the register tile's vectors in one loop body."""
        lanes = lanes_of(self.acc, self.task.target)
        registers = math.prod(-(-n // lanes) if a == self.roles.vector else n for a, n in tile.items())
        return registers * math.prod(self.extents[t] for t in unrolled)

    def short(
        self,
        tile: Mapping[str, int],
        unrolled: tuple[str, ...],
        terms: int = 1,
        cuts: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Whether what is written out stays in the instruction cache, and compiles in well under a second."""
        body = self._updates(tile, unrolled) * terms
        return body <= LONGEST_BODY and body * self._versions(tile, unrolled, cuts) <= LONGEST_CODE

    def _versions(self, tile: Mapping[str, int], unrolled: tuple[str, ...], cuts: Mapping[str, int]) -> int:
        """How often a body is written: tiles at the image's borders skip taps, the last ones may be smaller.

        Where a loop over such tiles is cut into blocks, the first and the last block are two loops each.
        """
        count = 1
        for axis in (*self.roles.pixels, *{self.roles.vector, self.roles.column}):
            size, extent = tile.get(axis or "", 1), self.extents.get(axis or "", 1)
            tiles = -(-extent // size)
            block = cuts.get(f"{axis}_o" if axis in tile else f"{axis}", tiles)
            if self.padded and any((tap, axis) in self.slides for tap in unrolled):
                count *= min(tiles, 5 if 1 < block < tiles else 3)
            elif tiles > 1 and extent % size:
                count *= 2
        return count


def _tile(subject: Subject, cfg: Config) -> tuple[tuple[str, int], ...]:
    axes = [axis for axis, _ in subject.tiles[0]]
    ranked = [tuple(n for _, n in tile) for tile in subject.tiles]
    return tuple(zip(axes, combination(cfg, [f"tile_{axis}" for axis in axes], ranked)))


def params_of(subject: Subject, cfg: Config) -> Params:
    task, roles, block = subject.task, subject.roles, subject.block
    tile = _tile(subject, cfg)
    unrolled = _unrolled_taps(subject, dict(tile), cfg)
    reduction = _reduction(subject, unrolled, cfg)
    plain_sum = len(reduction) == 1 and not roles.taps and not block  # of a matrix product
    loops = outer_loops(subject, dict(tile))
    cuts = cache_blocks(
        *(cfg, "block", loops, [lp for lp in loops if lp not in subject.outermost]),
        allowed=lambda cuts: subject.short(dict(tile), unrolled, cuts=cuts),
    )
    order, extents = _outer_order(subject, loops, cuts, cfg)
    step = f"{block[0][0]}_o" if block else (*reduction, "")[0]
    streamed = block or plain_sum
    in_order = bool(streamed and roles.column and roles.pixels) and not roles.batch
    fits = (
        in_order
        and not roles.taps
        and panel_bytes(task, subject.expr, roles, dict(tile)) * 2 <= task.target.l2
    )
    in_order = in_order and order[0] == f"{roles.column}_o" and not cuts and reduction[0] == step
    lines, panel = _prefetches(subject, dict(tile), fits, in_order)
    return Params(
        tile=tile,
        cuts=tuple(cuts.items()),
        order=order,
        dealt=dealt_loops(cfg, "tasks", extents, _dealt(subject, order, extents), task.threads),
        reduction=reduction,
        unrolled=unrolled,
        together=_together(subject, dict(tile), unrolled, cuts, plain_sum, cfg),
        block=block,
        prefetch=choose(cfg, "prefetch", PREFETCHES if subject.weight_bytes and reduction else (0,), lines),
        ahead=choose(
            cfg, "ahead", (0, 1, 2, 4) if block else (0,), blocks_ahead(roles, subject.extents, block)
        ),
        panel=choose(cfg, "panel", (True, False) if in_order else (False,), panel),
    )


def _prefetches(subject: Subject, tile: Mapping[str, int], fits: bool, in_order: bool) -> tuple[int, bool]:
    """By default: how many lines of weights are prefetched before they are multiplied, and whether the next
    panel's are while this one is. `fits`: both stay in the second-level cache, so one of them will do.

    Weights arrive cold, small ones too: those of other layers have driven them out.
    """
    roles, size, l2 = subject.roles, subject.weight_bytes, subject.task.target.l2
    if fits and subject.extents[roles.column or ""] <= tile[roles.column or ""]:  # there is one panel
        return (64 if size > l2 // 16 else 0), False
    if fits:
        return 0, in_order and size > l2 // 8
    cold = size > l2
    return (32 if cold and roles.pixels else 0), in_order and cold  # what is used once comes in order


# --- outer loops -----------------------------------------------------------------------------------------


def outer_loops(subject: Subject, tile: Mapping[str, int]) -> dict[str, int]:
    """Name → iterations of the loops around a register tile, by default from the outside in."""
    roles = subject.roles
    columns = [a for a in (roles.vector, roles.column) if a and (a in tile or a == roles.column)]
    pixels = [*reversed(roles.pixels)]
    rows = pixels[: int(subject.rows_outer)]
    axes = [*roles.batch, *rows, *columns, *pixels[len(rows) :]]
    sizes = {a: -(-subject.extents[a] // tile.get(a, 1)) for a in axes}
    return {f"{a}_o" if a in tile else a: n for a, n in sizes.items()}


def _outer_order(
    subject: Subject, loops: Mapping[str, int], cuts: Mapping[str, int], cfg: Config
) -> tuple[tuple[str, ...], list[int]]:
    """All outer loops from the outside in, and their iterations: those over blocks around those inside."""
    fixed = [lp for lp in loops if lp in subject.outermost]
    extents = {**loops, **{f"{lp}_b": loops[lp] // n for lp, n in cuts.items()}, **cuts}
    inside = [lp for lp in loops if lp not in fixed]
    blocks = loop_order(cfg, "order_of_blocks", [f"{lp}_b" for lp in inside if lp in cuts])
    order = (*fixed, *blocks, *whole_order(cfg, "order", {lp: extents[lp] for lp in inside}))
    return order, [extents[lp] for lp in order]


def _dealt(subject: Subject, order: tuple[str, ...], extents: list[int]) -> int:
    """All loops outside of the innermost one over pixels, if those are tasks enough."""
    roles = subject.roles
    ends = (roles.pixels[0], f"{roles.pixels[0]}_o") if roles.pixels else ()
    at = next((n for n, lp in enumerate(order) if lp in ends), len(order))
    tasks = math.prod(n for lp, n in zip(order[:at], extents) if lp != f"{roles.vector}_o")
    return at if tasks >= ENOUGH_TASKS * subject.task.threads else len(order)


# --- reduction -------------------------------------------------------------------------------------------


def _unrolled_taps(subject: Subject, tile: Mapping[str, int], cfg: Config) -> tuple[str, ...]:
    """By default those over tiled pixels; where nothing else is summed (depthwise, pooling), all if short.

    Beside a long sum, what more is written out is only more code.
    """
    roles, extents = subject.roles, subject.extents
    taps, tiled = roles.taps, subject.tiled_taps(tile)
    pixels = math.prod(n for axis, n in tile.items() if axis != roles.vector)
    whole = not roles.sums and pixels * math.prod(extents[t] for t in taps) <= MAX_UNROLLED
    long = math.prod(extents[a] for a in roles.sums) > LONGEST_SHORT_SUM
    some = [tiled] if long else [c for n in range(len(taps) + 1) for c in combinations(taps, n)]
    short = [c for c in some if set(tiled) <= set(c) and subject.short(tile, c)]
    return choose(cfg, "unrolled", short, taps if whole else tiled)


def _together(
    subject: Subject,
    tile: Mapping[str, int],
    unrolled: tuple[str, ...],
    cuts: Mapping[str, int],
    plain: bool,
    cfg: Config,
) -> tuple[str, int]:
    """The innermost loop over a sum, and how many of its terms one iteration takes.

    By default several in matrix products, unless memory is the limit because no weight is used twice, in
    pooling of whole images, and a vector of channels where multiply-adds take them by lane.
    """
    roles = subject.roles
    if not roles.sums:
        return "", 1
    axis, blocks = roles.sums[-1], dict(subject.block)
    extent, size = subject.extents[axis], blocks.get(axis, 0)
    divide = (1,) if size and extent % size else divisors(size or extent)
    reused = any(tile.get(a, 1) > 1 for a in roles.pixels)
    by_lane = lanes_of(subject.acc, subject.task.target) if subject.task.target.multiplies_by_lane else 0
    few = [n for n in (TERMS if plain else divide) if n <= TERMS[-1]]
    terms = [n for n in few if subject.short(tile, unrolled, n // 2 if n == by_lane else n, cuts)]
    default = 4 if plain and reused else 1
    if shares_vectors(subject.acc, roles, axis):
        default = max(terms)
    if not reused and len({ld.tensor for ld in s.loads(subject.acc.body)}) == 1:
        default = max((n for n in terms if n <= 8), default=1)
    if by_lane in terms and (size or plain):
        default = by_lane
    return f"{axis}_i" if size else axis, choose(cfg, "together", terms, default)


def _reduction(subject: Subject, unrolled: tuple[str, ...], cfg: Config) -> tuple[str, ...]:
    """Loops by default: channel blocks, kernel rows, channels of a block, then what is unrolled."""
    roles, blocks = subject.roles, dict(subject.block)
    outer = [f"{a}_o" for a in roles.sums if a in blocks]
    inner = [f"{a}_i" if a in blocks else a for a in roles.sums]
    serial = [t for t in roles.taps if t not in unrolled]
    pairs = [(f"{a}_o", f"{a}_i") for a in blocks]
    return (*loop_order(cfg, "reduction", [*outer, *serial, *inner], pairs), *unrolled)


def _channel_block(acc: Stage, axis: str) -> int:
    """d where an index reads axis // d: the block of the operand's layout."""
    for e in s.walk(acc.body):
        if (
            isinstance(e, Binary)
            and e.op == "floordiv"
            and s.variables(e.a) == {axis}
            and isinstance(e.b, s.Const)
        ):
            return int(e.b.value)
    return 1
