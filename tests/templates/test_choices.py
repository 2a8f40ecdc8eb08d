"""Questions that templates share: what they offer, and that defaults are as given."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.templates.choices import (
    cache_blocks,
    choose,
    combination,
    dealt_loops,
    divisors,
    loop_order,
)


class Options(DefaultConfig):
    """The default of every question, and what else was offered."""

    def __init__(self):
        super().__init__()
        self.offered = {}

    def choose(self, knob, options, default):
        assert default in options and len(set(options)) == len(options) > 1
        self.offered[knob] = list(options)
        return super().choose(knob, options, default)


def test_one_option_is_no_question():
    cfg = Options()
    assert choose(cfg, "a", (3,), 3) == 3 and choose(cfg, "b", (), 4) == 4 and not cfg.offered
    assert choose(cfg, "c", (1, 2), 7) == 7 and cfg.offered == {"c": [7, 1, 2]}


def test_combinations_are_the_ranked_ones():
    ranked = [(2, 3), (1, 6), (2, 1), (6, 1), (1, 3)]
    rng, seen = random.Random(0), set()
    for _ in range(200):
        cfg = DefaultConfig()
        cfg.choose = lambda knob, options, default: rng.choice(options)
        seen.add(combination(cfg, ("a", "b"), ranked))
    assert seen == set(ranked)
    assert combination(DefaultConfig(), ("a", "b"), ranked) == (2, 3)
    assert combination(FixedConfig({"a": 1}), ("a", "b"), ranked) == (1, 6)  # the best of those left


def test_orders():
    cfg = Options()
    assert loop_order(cfg, "order", "abc") == tuple("abc")
    assert sorted(cfg.offered["order"]) == sorted(permutations("abc"))
    assert loop_order(cfg, "inside", "abc", [("a", "c"), ("x", "a")]) == tuple("abc")
    assert all(o.index("a") < o.index("c") for o in cfg.offered["inside"]) and len(cfg.offered["inside"]) == 3
    loop_order(cfg, "many", "abcdefg")
    assert all(o[:2] == ("a", "b") for o in cfg.offered["many"]) and len(cfg.offered["many"]) == 120


@pytest.mark.parametrize("n", [1, 2, 7, 12, 360])
def test_divisors(n):
    assert list(divisors(n)) == [d for d in range(1, n + 1) if n % d == 0]


def test_blocks_divide_their_loop():
    cfg = Options()
    assert cache_blocks(cfg, "block", {"a": 12, "b": 3, "c": 8}, ("a", "b")) == {}
    assert cfg.offered == {"block_a": [1, 2, 3, 4, 6, 12]}
    assert cache_blocks(FixedConfig({"block_a": 4}), "block", {"a": 12}, ("a",)) == {"a": 4}
    cache_blocks(cfg, "few", {"a": 12}, ("a",), lambda cuts: cuts["a"] % 2 == 0)
    assert cfg.offered["few_a"] == [2, 4, 6, 12]


def test_tasks_are_enough_for_all_workers():
    cfg = Options()
    assert dealt_loops(cfg, "tasks", (1, 2, 5, 1, 3), 3, workers=4) == 3
    assert cfg.offered["tasks"] == [3, 5]
    assert dealt_loops(cfg, "few", (2, 1), 2, workers=4) == 2
