"""The direct template offers only configs whose code is short, counted in their loop programs."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from burnish.compiler.ir.loops import Alloc, For, If, Stmt, Store
from burnish.compiler.lower.lower import lower
from burnish.compiler.target import get_target
from burnish.compiler.templates.direct_params import LONGEST_CODE
from burnish.compiler.templates.register_tiles import ACC
from burnish.op_tuner.space import Space
from burnish.workloads import direct_convolution

DRAWS = 12
SLACK = 1.3  # with what begins the sums


def updates(body: Iterable[Stmt]) -> int:
    """Stores to the register tile, as often as they are written out."""
    count = 0
    for st in body:
        if isinstance(st, Store):
            count += st.buffer.startswith(ACC)
        elif isinstance(st, For):
            count += updates(st.body) * ((st.extent or 1) if st.kind == "unroll" else 1)
        elif isinstance(st, If):
            count += updates((*st.then, *st.other))
        elif isinstance(st, Alloc):
            count += updates(st.body)
    return count


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", ["c2", "c9"])
def test_what_is_written_out_is_short(name: str, target: str) -> None:
    """Borders, tails of tiles and blocks of loops included."""
    space, rng = Space(direct_convolution(name, get_target(target))), random.Random(1)
    points = [space.default(), *(space.draw(rng) for _ in range(DRAWS))]
    found = [updates(lower(space.task, Space.config(p)).body) for p in points]
    assert min(found) > 10 and max(found) <= SLACK * LONGEST_CODE


def test_a_default_is_always_offered() -> None:
    for name in ("c1", "c2", "c7", "c12"):
        for target in ("x86-64-v3", "x86-64-v4"):
            space = Space(direct_convolution(name, get_target(target)))
            assert space.point(dict(space.default())) == space.default()
