"""One arena: what is needed at the same time lies apart, and what is not shares its bytes."""

from itertools import combinations

import pytest
from burnish.graph_passes.plan_memory import ALIGNMENT, Lifetime, plan_memory
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def lifetimes(draw) -> list[Lifetime]:
    count = draw(st.integers(0, 12))
    values = []
    for n in range(count):
        first = draw(st.integers(0, 10))
        last = draw(st.integers(first, 11))
        values.append(Lifetime(f"v{n}", draw(st.integers(0, 1000)), first, last))
    return values


@given(lifetimes())
def test_what_is_alive_together_lies_apart(values: list[Lifetime]) -> None:
    offsets, arena = plan_memory(values)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert arena >= max((offset + v.nbytes for offset, v in zip(offsets, values)), default=0)
    for (a, at), (b, other) in combinations(zip(values, offsets), 2):
        if a.first <= b.last and b.first <= a.last:
            assert at + a.nbytes <= other or other + b.nbytes <= at, (a, at, b, other)
    needed = (sum(v.nbytes for v in values if v.first <= step <= v.last) for step in range(12))
    assert max(needed) <= arena <= sum(max(ALIGNMENT, -(-v.nbytes // ALIGNMENT) * ALIGNMENT) for v in values)


@pytest.mark.parametrize("length", [2, 10])
def test_a_chain_takes_two_places(length: int) -> None:
    offsets, arena = plan_memory([Lifetime(f"v{n}", 4096, n, n + 1) for n in range(length)])
    assert arena == 8192
    assert offsets == [0, 4096] * (length // 2)


def test_a_gap_between_two_that_stay_is_filled() -> None:
    values = [
        Lifetime("first", 300, 0, 9),
        Lifetime("short", 200, 0, 1),
        Lifetime("last", 100, 1, 9),
        Lifetime("later", 190, 2, 3),
    ]
    offsets, arena = plan_memory(values)
    assert offsets == [0, 320, 576, 320] and arena == 704
