"""What more trials of a task may gain: a curve that is fitted to what trials have gained so far.

With n trials behind the default config, the best one is expected to be faster by a factor of exp(G · u(n)),

    u(n) = log(1 + n / EARLY) / log(1 + MANY / EARLY)

so that each trial gains less than the one before. G, the gain of MANY trials, starts from GAIN and moves to
what the tasks of the network show, and for each task from there to what its own trials show. What a task
gains differs from that by as much as it is: a normal distribution whose deviation is its mean, as in expected
improvement (Jones et al. 1998).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

GAIN = 0.15  # logarithm of the gain of MANY trials, before anything is known
MANY, EARLY = 800, 8
BELIEF = 0.25  # how much GAIN weighs: as much as a network of which this share of the gain has been seen
DOUBT = 0.2  # deviation of the logarithm of a predicted time
HORIZONS = (1, 8, 32, 128)  # trials to look ahead: what is far behind pays only after some


def share(trials: int) -> float:
    """u(n) of what comes after the default."""
    return math.log1p(max(trials - 1, 0) / EARLY) / math.log1p(MANY / EARLY)


def fitted(seen: Iterable[tuple[float, int, float]], believed: float = GAIN) -> float:
    """G from (weight, trials, logarithm of default over best) of tasks, and what was believed before."""
    tasks = list(seen)
    total = sum(weight for weight, _, _ in tasks)
    if not total:
        return believed
    shown = sum(weight * found for weight, _, found in tasks) / total
    tried = sum(weight * share(trials) for weight, trials, _ in tasks) / total
    return (BELIEF * believed + shown) / (BELIEF + tried)


def improvement(mean: float, deviation: float) -> float:
    """The mean of what is above 0 in a normal distribution."""
    if deviation <= 0:
        return max(mean, 0.0)
    z = mean / deviation
    below = 0.5 * math.erfc(-z / math.sqrt(2))
    return mean * below + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def rate(gain: float, trials: int, seconds: float, target: float, measured: bool) -> float:
    """Seconds that one more trial is expected to save, of a task that takes `seconds` and saves once it takes
    less than `target`; the best over several horizons."""
    if not target > 0 or not 0 < seconds < math.inf:
        return 0.0
    best = 0.0
    for ahead in HORIZONS:
        mean = gain * (share(trials + ahead) - share(trials))
        deviation = mean if measured else math.hypot(mean, DOUBT)
        best = max(best, target * improvement(mean - math.log(seconds / target), deviation) / ahead)
    return best
