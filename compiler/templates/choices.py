"""Questions that templates share: one element of a ranked list, orders of loops, cache blocks, unrolling.

A question with a single option is not asked, so that every point of a space is another program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from types import MappingProxyType
from typing import Any, TypeVar

from ..ir.loops import Body, loop
from ..kernel_task import Config

T = TypeVar("T")
MOST_ORDERED = 5  # loops that a question permutes; those outside of them stay where they are
MOST_TERMS = 16  # of a sum in one iteration
LONGEST_BODY = 256  # updates of registers that a config may write out in one loop body
PREFETCHES = (0, 16, 32, 64, 128, 256)  # iterations ahead, or cache lines
LEAST_BLOCKED = 4  # iterations of a loop that is worth cutting into blocks


def choose(cfg: Config, knob: str, options: Sequence[T], default: T) -> T:
    """One of the options or the default, which need not be among them."""
    if default not in options:
        options = (default, *options)
    return cfg.choose(knob, options, default) if len(options) > 1 else default


def combination(cfg: Config, knobs: Sequence[str], ranked: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """One of the ranked tuples, asked for element by element; the best that is left is the default."""
    for n, knob in enumerate(knobs):
        answers = tuple(dict.fromkeys(t[n] for t in ranked))
        answer = choose(cfg, knob, answers, answers[0])
        ranked = [t for t in ranked if t[n] == answer]
    return ranked[0]


def loop_order(
    cfg: Config, knob: str, loops: Sequence[str], inside: Sequence[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """The loops from the outside in, by default as given; `inside` are pairs (outer, inner) that stay so."""
    options = _orders(tuple(loops), tuple(inside))
    return choose(cfg, knob, options, options[0])


def whole_order(
    cfg: Config, knob: str, extents: Mapping[str, int], inside: Sequence[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """An order of all loops, of which those of one iteration keep their places."""
    moved = iter(loop_order(cfg, knob, [lp for lp, n in extents.items() if n > 1], inside))
    return tuple(next(moved) if n > 1 else lp for lp, n in extents.items())


@lru_cache(maxsize=1024)
def _orders(loops: tuple[str, ...], inside: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], ...]:
    fixed = loops[: max(0, len(loops) - MOST_ORDERED)]
    pairs = [(a, b) for a, b in inside if a in loops and b in loops]
    every = (fixed + p for p in permutations(loops[len(fixed) :]))
    return tuple(p for p in every if all(p.index(a) < p.index(b) for a, b in pairs))


def nested(order: Sequence[str], extents: Mapping[str, int], body: Body, kind: str = "serial") -> Body:
    """The body inside of loops in this order."""
    for var in reversed(order):
        body = (loop(var, extents[var], *body, kind=kind),)
    return body


def cache_blocks(
    cfg: Config,
    knob: str,
    extents: Mapping[str, int],
    loops: Sequence[str],
    allowed: Callable[[Mapping[str, int]], bool] = lambda cuts: True,
    usual: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Loop → iterations of a block, for loops that are cut; by default the `usual` ones. Blocks divide their
    loop."""
    cuts: dict[str, int] = {}
    for lp in loops:
        n = extents[lp]
        sizes = [d for d in divisors(n) if allowed({**cuts, lp: d})] if n >= LEAST_BLOCKED else ()
        size = choose(cfg, f"{knob}_{lp}", sizes, usual.get(lp, n))
        if size < n:
            cuts[lp] = size
    return cuts


def terms(cfg: Config, extent: int, registers: int, default: int) -> int:
    """How many terms of a sum over `extent` one iteration adds to each register of a tile: a divisor."""
    short = [n for n in divisors(extent) if n <= MOST_TERMS and n * registers <= LONGEST_BODY]
    return choose(cfg, "together", short, default)


def dealt_loops(cfg: Config, knob: str, extents: Sequence[int], default: int, workers: int) -> int:
    """How many of the outermost loops become tasks: enough tasks for all workers where there are."""
    wanted = min(workers, math.prod(extents))
    options = [
        n
        for n in range(1, len(extents) + 1)
        if extents[n - 1] > 1 and math.prod(extents[:n]) >= wanted and n != default
    ]
    return choose(cfg, knob, (default, *options), default)


@lru_cache(maxsize=1024)
def divisors(n: int) -> tuple[int, ...]:
    """From the least to the largest."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))
