import random

import pytest
from burnish.commands.intervals import median_interval


def test_five_values_give_the_whole_range():
    found = median_interval([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.low, found.middle, found.high) == (1.0, 3.0, 5.0)
    assert found.coverage == pytest.approx(1 - 2 / 32)


def test_nine_values_may_drop_one_at_each_end():
    # 1 - 2 · (1 + 9) / 512 = 0.9609; dropping two would leave 0.8203
    found = median_interval(list(range(9)))
    assert (found.low, found.middle, found.high) == (1, 4, 7)
    assert found.coverage == pytest.approx(1 - 20 / 512)


def test_one_value_has_no_certainty():
    found = median_interval([2.5])
    assert (found.low, found.middle, found.high, found.coverage) == (2.5, 2.5, 2.5, 0.0)


def test_no_values_are_an_error():
    with pytest.raises(ValueError):
        median_interval([])


@pytest.mark.parametrize("count", [6, 9, 15])
def test_coverage_holds_on_a_skewed_distribution(count):
    rng = random.Random(1)
    true_median = 0.6931471805599453  # of the exponential distribution
    trials = 2000
    held = 0
    for _ in range(trials):
        found = median_interval([rng.expovariate(1.0) for _ in range(count)])
        held += found.low <= true_median <= found.high
    assert held / trials == pytest.approx(found.coverage, abs=0.02)
    assert found.coverage >= 0.95
