"""How long a tuning will take, and what it will gain: its allocation of trials, played through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .expected_gain import fitted, share
from .tuned_task import TunedTask

SAMPLES = 20  # for the size of a space
STEPS = 5000
TRIAL, LARGE, COLD = 0.1, 0.5, 0.15
"""Seconds of a trial, before any was made; of one of an algorithm whose code is large; more where other data
is read before each run."""
OF_LARGE = ("winograd", "polyphase", "fft")


@dataclass(frozen=True)
class Forecast:
    """Seconds and trials of the whole run, what was spent until the forecast included; seconds of the network
    with default configs and, as is expected, with the best, infinite where they are not known."""

    seconds: float
    trials: int
    before: float
    after: float
    calibration: float  # seconds spent until the forecast; 0 where nothing has been measured
    expected: float = 1.0  # the gain where the times are not known

    @property
    def gain(self) -> float:
        return self.before / self.after if 0 < self.after < math.inf else self.expected


def foretold(
    tasks: Sequence[TunedTask],
    trials: float,
    seconds: float,
    *,
    spent: float = 0.0,
    cold: bool = False,
    confirming: float = 0.0,
) -> Forecast:
    """Before anything is measured, of a run that ends with so many trials or seconds, of which `spent` are
    over: by what trials take and gain of other networks. A tuning that goes on expects as much of each trial
    as those before gained."""
    each = _trial(tasks) + COLD * cold
    done = min(trials, max(1.0, (seconds - spent - confirming) / each))
    whole = spent + done * each + confirming
    before = sum(t.trials for t in tasks)
    of_task = [n / max(1, len(tasks)) for n in (before, before + done)]
    gain = curve(tasks) * (share(int(of_task[1])) - share(int(of_task[0])))
    return Forecast(min(seconds, whole), int(done), math.inf, math.inf, 0.0, math.exp(gain))


def _trial(tasks: Sequence[TunedTask]) -> float:
    """Seconds of a trial on average: they go where the time is."""
    times = [(t, t.count * t.wanted.expected) for t in tasks]
    times = [(t, seconds) for t, seconds in times if 0 < seconds < math.inf] or [(t, 1.0) for t in tasks]
    large = sum(seconds for t, seconds in times if t.task.transformed.startswith(OF_LARGE))
    return TRIAL + (LARGE - TRIAL) * large / (sum(seconds for _, seconds in times) or 1.0)


def curve(tasks: Sequence[TunedTask]) -> float:
    """What many trials gain, by what they have gained so far."""
    known = [t for t in tasks if t.count and t.before < math.inf]
    return fitted((t.count * t.after, t.trials, t.gained) for t in known)


@dataclass(frozen=True)
class Outlook:
    """Seconds and trials of going on; seconds that the network takes less; the tasks that are tried in it."""

    seconds: float
    trials: int
    saved: float
    tried: tuple[TunedTask, ...]


def winning(tasks: Sequence[TunedTask], batch: int) -> float:
    """The share of tasks that a batch gives a better config than the default; a half if none is known."""
    known = [t.best != t.default for t in tasks if t.trials > batch]
    return (1 + sum(known)) / (2 + len(known))


def play(
    tasks: Sequence[TunedTask], batch: int, cost: Callable[[TunedTask], float], seconds: float, trials: float
) -> Outlook:
    """Until either is used up; `cost` is that of a trial. Without a limit of time, gains count by trial."""
    gain = curve(tasks)
    states = {id(t): _State(t, cost(t)) for t in tasks if not t.exhausted}
    timed = seconds < math.inf
    rates = {key: state.rate(gain, timed) for key, state in states.items()}
    spent, done, saved = 0.0, 0, 0.0
    if trials < math.inf:
        batch = max(batch, math.ceil(trials / max(1, STEPS - len(states))))
    for _ in range(STEPS):
        key = max(rates, key=lambda k: rates[k], default=None)
        if key is None or rates[key] <= 0 or spent >= seconds or done >= trials:
            break
        state = states[key]
        ahead = int(min(batch if state.trials else 1, trials - done, state.left))  # the default comes alone
        saved += state.go(ahead, gain)
        spent, done = spent + ahead * state.cost, done + ahead
        rates[key] = state.rate(gain, timed)
    tried = tuple(state.task for state in states.values() if state.trials > state.task.trials)
    return Outlook(spent, done, saved, tried)


class _State:
    """A task some trials later."""

    def __init__(self, task: TunedTask, cost: float):
        self.task, self.cost, self.trials = task, max(cost, 1e-9), task.trials
        self.now = task.after if task.trials else task.wanted.expected
        self.left = task.space.size(SAMPLES) - task.trials

    def rate(self, gain: float, timed: bool) -> float:
        if self.left < 1 or not self.now < math.inf:
            return 0.0
        return self.task.gain_at(gain, self.trials, self.now) / (self.cost if timed else 1.0)

    def go(self, ahead: int, gain: float) -> float:
        """Seconds that the network takes less after so many more trials."""
        faster = self.now * math.exp(gain * (share(self.trials) - share(self.trials + ahead)))
        saved = self.task.count * (self.now - faster)
        self.trials, self.now, self.left = self.trials + ahead, faster, self.left - ahead
        return saved
