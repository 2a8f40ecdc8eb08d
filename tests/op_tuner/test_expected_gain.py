"""What more trials may gain: less and less, more where more was seen, and of rivals only what is in reach."""

import math

import numpy as np
import pytest
from burnish.op_tuner.expected_gain import BELIEF, GAIN, MANY, fitted, improvement, rate, share


def test_each_trial_gains_less():
    shares = [share(n) for n in range(1, MANY + 2)]
    steps = np.diff(shares)
    assert shares[0] == 0 and shares[-1] == pytest.approx(1) and (np.diff(steps) < 0).all()


def test_what_is_seen_moves_the_curve():
    assert fitted([]) == GAIN
    assert fitted([(1.0, MANY + 1, GAIN)]) == pytest.approx(GAIN)
    much = fitted([(1.0, MANY + 1, 1.0)])
    assert much == pytest.approx((BELIEF * GAIN + 1) / (BELIEF + 1))
    assert fitted([(3.0, MANY + 1, 1.0), (1.0, MANY + 1, 0.0)]) < much
    assert fitted([(1.0, 100, 0.0)]) < GAIN


@pytest.mark.parametrize(("mean", "deviation"), [(0.1, 0.1), (-0.2, 0.1), (0, 1), (0.3, 0), (-0.3, 0)])
def test_improvement_is_the_mean_above_zero(mean, deviation):
    drawn = np.random.default_rng(0).normal(mean, deviation, 400_000)
    assert improvement(mean, deviation) == pytest.approx(np.maximum(drawn, 0).mean(), abs=2e-3)


def test_rates():
    own = rate(0.15, 10, 1.0, 1.0, True)
    assert 0 < own < 0.15 and own > rate(0.15, 100, 1.0, 1.0, True)
    assert own > rate(0.15, 10, 1.1, 1.0, True) > rate(0.15, 10, 1.3, 1.0, True)
    assert rate(0.15, 10, 1.5, 1.0, True) < own / 100
    assert rate(0.15, 0, 1.2, 1.0, False) > rate(0.15, 1, 1.2, 1.0, True), "what is predicted may be wrong"
    assert rate(0.15, 10, math.inf, 1.0, True) == 0 == rate(0.15, 10, 1.0, -1.0, True)
