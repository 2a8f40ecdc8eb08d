"""How long a tuning will take, and what it will gain: its allocation of trials, played through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .expected_gain import fitted, share
from .tuned_task import TunedTask

SAMPLES = 20  # for the size of a space
STEPS = 5000


@dataclass(frozen=True)
class Forecast:
    """Seconds and trials of the whole run, what was spent until the forecast included; seconds of the network
    with default configs and, as is expected, with the best."""

    seconds: float
    trials: int
    before: float
    after: float
    calibration: float  # seconds spent until the forecast

    @property
    def gain(self) -> float:
        return self.before / self.after if 0 < self.after < math.inf else 1.0


def curve(tasks: Sequence[TunedTask]) -> float:
    """What many trials gain, by what they have gained so far."""
    known = [t for t in tasks if t.count and t.before < math.inf]
    return fitted((t.count * t.after, t.trials, math.log(t.before / t.after)) for t in known)


def play(
    tasks: Sequence[TunedTask], batch: int, cost: Callable[[TunedTask], float], seconds: float, trials: float
) -> tuple[float, int, float]:
    """(seconds, trials, seconds that the network takes less) of going on until either is used up; `cost` is
    that of a trial."""
    gain = curve(tasks)
    states = {id(t): _State(t, cost(t)) for t in tasks if not t.exhausted}
    rates = {key: state.rate(gain) for key, state in states.items()}
    spent, done, saved = 0.0, 0, 0.0
    for _ in range(STEPS):
        key = max(rates, key=lambda k: rates[k], default=None)
        if key is None or rates[key] <= 0 or spent >= seconds or done >= trials:
            break
        state = states[key]
        ahead = int(min(batch, trials - done, state.left))
        saved += state.go(ahead, gain)
        spent, done = spent + ahead * state.cost, done + ahead
        rates[key] = state.rate(gain)
    return spent, done, saved


class _State:
    """A task some trials later."""

    def __init__(self, task: TunedTask, cost: float):
        self.task, self.cost, self.trials = task, max(cost, 1e-9), task.trials
        self.now = task.after if task.trials else task.wanted.expected
        self.left = task.space.size(SAMPLES) - task.trials

    def rate(self, gain: float) -> float:
        if self.left < 1 or not self.now < math.inf:
            return 0.0
        return self.task.gain_at(gain, self.trials, self.now) / self.cost

    def go(self, ahead: int, gain: float) -> float:
        """Seconds that the network takes less after so many more trials."""
        faster = self.now * math.exp(gain * (share(self.trials) - share(self.trials + ahead)))
        saved = self.task.count * (self.now - faster)
        self.trials, self.now, self.left = self.trials + ahead, faster, self.left - ahead
        return saved
