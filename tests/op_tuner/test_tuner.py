"""The tuner with a measurer that knows the costs: what is measured, kept, confirmed, resumed."""

import math
import os
import signal
from dataclasses import replace

import burnish
import pytest
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.templates import registry
from burnish.errors import InputError, RunError
from burnish.op_tuner.costs import record_of
from burnish.op_tuner.expected_gain import GAIN
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.isolate import Spans
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.record import plain
from burnish.op_tuner.records import Records
from burnish.op_tuner.tuned_task import HOPELESS, WINDOW, Wanted
from burnish.op_tuner.tuner import BATCH, STRATEGIES, Tuner
from burnish.op_tuner.verdict import CONFIRMED

from ..conftest import require_module
from .tasks import double, op_task


class Questions:
    """x and y of 1…8; the default is (1, 1), the fastest is (5, 3)."""

    def params(self, task, cfg):
        x, y = cfg.choose("x", range(1, 9), 1), cfg.choose("y", range(1, 9), 1)
        cfg.require(x != y or x == 1)
        return x, y


class Measurer:
    """Costs that are known; counts; `wrong` answers fail; `lucky` gives one measurement of a config."""

    def __init__(self, wrong=(), lucky=None, scale=None, stop_after=None):
        self.wrong, self.lucky, self.scale = wrong, dict(lucky or {}), scale or {}
        self.stop_after, self.seen = stop_after, []
        self.hardware, self.spans = this_hardware(), Spans()
        self.idle, self.ready = (), 0

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            yield n, self.measure(candidate.task, candidate.config)

    def measure(self, task, cfg):
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        x, y = Questions().params(task, cfg)
        config = {k: plain(v) for k, v in cfg.chosen.items()}
        self.seen.append((task.name, (x, y)))
        if (x, y) in self.wrong:
            return Measurement.failed("wrong", "it is", config)
        seconds = self.lucky.pop((x, y), None) or 1 + abs(x - 5) + abs(y - 3)
        return Measurement(seconds * self.scale.get(task.name, 1e-3), 0.0, 5, config=config)


@pytest.fixture
def tasks(monkeypatch):
    """Two tasks of which the network runs the first three times."""
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return [Wanted(double(), 3, 3), Wanted(replace(double(), name="other"), 1, 1)]


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records.jsonl", shipped=False)


def tuner(tasks, records, measure, strategy="random", **options):
    return Tuner(tasks, records, threads=1, strategy=strategy, measure=measure, **options)


@pytest.mark.parametrize("strategy", ["genetic", "random"])
def test_defaults_first_then_as_many_as_asked_for(tasks, records, strategy):
    measure = Measurer()
    found = tuner(tasks, records, measure, strategy)
    found.run(trials=40)
    assert measure.seen[:2] == [("double", (1, 1)), ("other", (1, 1))]
    assert found.measured == 40 and len(set(measure.seen)) == 40
    assert [t.before for t in found.tasks] == [7e-3, 7e-3] and not found.interrupted
    assert all(t.after < 5e-3 for t in found.tasks) and found.after < found.before
    assert found.before == pytest.approx(28e-3)
    assert len(records) == len(measure.seen)


def test_trials_are_those_of_one_run(tasks, records):
    found, told = tuner(tasks, records, Measurer()), []
    found.progress = lambda text, done, total: told.append((done, total))
    for trials in (10, 6):
        found.run(trials=trials)
    assert found.measured == 16 and told[-1] == (6, 6) and max(told) == (10, 10)


def test_what_tasks_gained_lately_begins_before_the_latest_trials(tasks, records):
    (state, _) = tuner(tasks, records, Measurer()).tasks
    state.times[state.default] = [4.0]
    state.course = [4.0] + [2.0] * WINDOW
    assert state._recent() == 2 / WINDOW
    state.course = [4.0, 1.0]
    assert state._recent() == 3
    state.course = [4.0]
    assert state._recent() == 0


@pytest.mark.parametrize("error", [RunError("no process"), OSError(28, "no space"), MemoryError()])
def test_what_is_nobodys_fault_ends_a_run_and_not_its_table(tasks, records, error):
    class Failing(Measurer):
        def measure(self, task, cfg):
            if len(self.seen) == 12:
                raise error
            return super().measure(task, cfg)

    found = tuner(tasks, records, Failing())
    found.run(trials=40)
    assert found.interrupted and found.failure == (str(error) or "MemoryError")
    assert found.measured == len(records) == 12 and found.after < found.before


def test_trials_go_where_they_gain_most(tasks, records):
    measure = Measurer(scale={"double": 1e-2, "other": 1e-5})
    found = tuner(tasks, records, measure)
    found.run(trials=30)
    assert found.tasks[0].trials > 25 and found.tasks[1].trials == 1


def test_configs_that_win_are_measured_again(tasks, records):
    """One lucky run does not decide."""
    found = tuner(tasks[:1], records, Measurer(lucky={(8, 7): 0.5}))
    found.run(trials=57)
    (state,) = found.tasks
    lucky = (("x", 8), ("y", 7))
    assert min(state.times[lucky]) == 0.5e-3 and len(state.times[lucky]) > 1
    assert dict(state.best) == {"x": 5, "y": 3}
    assert len(state.times[state.best]) == CONFIRMED == len(state.times[state.default])


def test_what_few_runs_that_differ_say_is_asked_again_at_once(tasks, records):
    """And neither the search nor what others are measured beside goes by it."""
    beats = []

    class Disturbed(Measurer):
        def __call__(self, candidates, alone=False):
            beats.extend(c.beat for c in candidates)
            return super().__call__(candidates, alone)

        def measure(self, task, cfg):
            odd = Questions().params(task, cfg) in self.lucky
            result = super().measure(task, cfg)
            return replace(result, spread=0.6, runs=3) if odd else result

    measure = Disturbed(lucky={(8, 7): 0.5})
    found = tuner(tasks[:1], records, measure)
    found.run(trials=57)
    (state,) = found.tasks
    odd = (("x", 8), ("y", 7))
    first, second = [n for n, (_, point) in enumerate(measure.seen) if point == (8, 7)]
    assert second - first <= BATCH and state.times[odd] == [8e-3] and not state.unsure
    assert min(beats) >= 1e-3 and min(state.course) == 1e-3
    assert dict(state.best) == {"x": 5, "y": 3} and found.measured == 57


def test_what_fails_when_it_is_asked_again_is_not_asked_for_ever(tasks, records):
    class Disturbed(Measurer):
        def measure(self, task, cfg):
            odd = Questions().params(task, cfg) in self.lucky
            again = (task.name, Questions().params(task, cfg)) in self.seen
            result = super().measure(task, cfg)
            if odd:
                return replace(result, spread=0.6, runs=3)
            return Measurement.failed("timeout", "", dict(result.config)) if again else result

    measure = Disturbed(lucky={(8, 7): 0.5})
    found = tuner(tasks[:1], records, measure)
    found.run(trials=57)
    (state,) = found.tasks
    assert measure.seen.count(("double", (8, 7))) == 2 and min(state.course) == 1e-3
    assert state.unsure == {(("x", 8), ("y", 7))} and dict(state.best) == {"x": 5, "y": 3}


def test_a_machine_that_is_never_sure(tasks, records):
    class Disturbed(Measurer):
        def measure(self, task, cfg):
            return replace(super().measure(task, cfg), spread=0.6, runs=3)

    found = tuner(tasks[:1], records, Disturbed())
    found.run(trials=57)
    (state,) = found.tasks
    assert dict(state.best) == {"x": 5, "y": 3} and len(state.unsure) == len(state.times)
    assert max(map(len, state.times.values())) == CONFIRMED and found.measured == 57


def test_a_machine_that_is_no_longer_sure(tasks, records):
    """What was sure once stays so; the same is not measured again without end."""

    class Disturbed(Measurer):
        def measure(self, task, cfg):
            disturbed = len(self.seen) >= 40
            return replace(super().measure(task, cfg), spread=0.6 if disturbed else 0.0, runs=3)

    measure = Disturbed()
    found = tuner(tasks[:1], records, measure)
    found.run(trials=40)
    assert found.measured == 40 < len(measure.seen) <= 40 + 2 * CONFIRMED


def test_the_result_is_never_worse_than_the_default(tasks, records, monkeypatch):
    class Worse(Measurer):
        def measure(self, task, cfg):
            result = super().measure(task, cfg)
            seen = [p for _, p in self.seen].count(self.seen[-1][1])
            default = self.seen[-1][1] == (1, 1)
            return replace(result, seconds=2.0 if default else 1.0 if seen == 1 else 3.0)

    found = tuner(tasks[:1], records, Worse())
    found.run(trials=6)
    (state,) = found.tasks
    assert state.after <= state.before == 2.0 and state.best == state.default
    config = records.pick_config(tasks[0].task)
    assert Questions().params(None, config) == (1, 1)


def test_the_tuned_config_is_picked(tasks, records):
    found = tuner(tasks, records, Measurer())
    found.run(trials=50)
    for state in found.tasks:
        config = records.pick_config(state.task)
        Questions().params(None, config)
        assert {k: plain(v) for k, v in config.chosen.items()} == dict(state.best)


def test_failures_are_recorded_and_do_not_stop_it(tasks, records):
    wrong = {(x, y) for x in range(1, 9) for y in range(1, 9) if x > 4}
    found = tuner(tasks[:1], records, Measurer(wrong))
    found.run(trials=30)
    errors = {r.error for r in records}
    assert errors == {None, "wrong"} and dict(found.tasks[0].best)["x"] <= 4


def test_a_default_that_fails(tasks, records):
    found = tuner(tasks, records, Measurer(wrong={(1, 1)}))
    found.run(trials=30)
    assert found.before == float("inf") and found.after < float("inf")
    assert all(t.after < float("inf") and t.default in t.failed for t in found.tasks)


def test_where_nothing_works_it_ends(tasks, records):
    everything = {(x, y) for x in range(1, 9) for y in range(1, 9)}
    found = tuner(tasks[:1], records, Measurer(wrong=everything))
    found.run(trials=100)
    assert found.measured <= HOPELESS and found.after == float("inf")


@pytest.mark.parametrize(("times", "works"), [(1, True), (2, False)])
def test_a_default_that_fails_once_for_a_passing_reason_is_asked_again(tasks, records, times, works):
    class Passing(Measurer):
        def measure(self, task, cfg):
            result = super().measure(task, cfg)
            default = all(answer == 1 for answer in result.config.values())
            if default and sum(at == (1, 1) for _, at in self.seen) <= times:
                return Measurement.failed("timeout", "", result.config)
            return result

    tuner(tasks[:1], records, Passing()).run(trials=1)
    found = tuner(tasks[:1], records, Measurer() if works else Measurer(wrong={(1, 1)}))
    found.run(trials=3)
    assert (found.before < float("inf")) == works


def test_ctrl_c_as_a_record_is_kept(tasks, records, monkeypatch):
    """What is kept is counted, and learnt."""
    keep = records.add

    def add(*new):
        keep(*new)
        if len(records) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(records, "add", add)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = tuner(tasks, records, Measurer())
        found.run(trials=40)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.interrupted
    assert found.measured == len(records) == sum(t.trials for t in found.tasks) == 7


def test_ctrl_c_keeps_everything_and_the_next_goes_on(tasks, records):
    first = Measurer(stop_after=13)
    found = tuner(tasks, records, first)
    found.run(trials=40)
    assert found.interrupted and found.measured == 13 and len(records) == 13
    again = Measurer()
    resumed = tuner(tasks, Records(records.path, shipped=False), again)
    assert sum(t.trials for t in resumed.tasks) == 13 and resumed.after == found.after
    resumed.run(trials=20)
    assert not set(again.seen[:20]) & set(first.seen)


def test_a_disturbed_default_is_measured_again_at_once(tasks, records):
    class Disturbed(Measurer):
        def measure(self, task, cfg):
            first = not self.seen
            result = super().measure(task, cfg)
            return replace(result, seconds=3 * result.seconds, spread=0.5) if first else result

    measure = Disturbed()
    found = tuner(tasks, records, measure)
    found.run(trials=3)
    assert measure.seen[:3] == [("double", (1, 1)), ("other", (1, 1)), ("double", (1, 1))]
    assert found.measured == 3 and [t.before for t in found.tasks] == [7e-3, 7e-3]


def test_what_an_older_compiler_found_is_measured_right_after_the_default(tasks, records):
    tuner(tasks[:1], records, Measurer()).run(trials=60)
    old = Records(records.path.with_name("old.jsonl"), shipped=False)
    old.add(*(replace(r, burnish="0" * 16) for r in records))
    measurer = Measurer()
    found = tuner(tasks[:1], old, measurer)
    found.run(trials=3)
    wanted = dict(found.tasks[0].told)
    assert [at for _, at in measurer.seen[:2]] == [(1, 1), (wanted["x"], wanted["y"])]
    assert found.after < found.before


def test_what_others_found_promises_nothing_of_more_trials(tasks, records):
    """Both tasks stand at their best config; one came there by a record, the other by trials of its own."""
    made = {(1, 1): 7e-3, (5, 3): 1e-3}
    lines = {at: {"x": at[0], "y": at[1]} for at in made}
    for wanted in tasks:
        own = [
            record_of(wanted.task, Measurement(s, 0.0, 5, config=lines[at]), 1, 0) for at, s in made.items()
        ]
        records.add(*own)
    records.add(
        replace(record_of(tasks[0].task, Measurement(1e-3, 0.0, 5, config=lines[5, 3]), 1, 0), llvm="1")
    )
    one, other = tuner(tasks, records, Measurer()).tasks
    assert (one.before, one.after) == (other.before, other.after) == (7e-3, 1e-3)
    assert one.gained == 0 and other.gained == pytest.approx(math.log(7))
    assert one.gain(GAIN) < other.gain(GAIN) * one.count / other.count / 2


def test_records_of_other_kinds_do_not_count(tasks, records):
    tuner(tasks, records, Measurer()).run(trials=5)
    assert sum(t.trials for t in tuner(tasks, records, Measurer()).tasks) == 5
    assert not sum(t.trials for t in tuner(tasks, records, Measurer(), evict=1 << 20).tasks)


def test_a_space_that_ends(tasks, records):
    found = tuner(tasks, records, Measurer())
    found.run(trials=10_000)
    assert all(t.exhausted and t.trials == 57 for t in found.tasks)


def test_a_budget_ends_it(tasks, records, monkeypatch):
    clock = [0.0]

    class Slow(Measurer):
        def measure(self, task, cfg):
            clock[0] += 1
            return super().measure(task, cfg)

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    told = []
    found = tuner(tasks, records, Slow(), progress=lambda *what: told.append(what))
    found.run(budget=20)
    assert 14 <= found.measured < 20 and 18 <= clock[0] <= 21
    assert told[0][1:] == (1, 20) and all(done <= total for _, done, total in told)
    assert "network" in told[2][0]


def test_when_time_is_over_what_is_measured_already_is_kept(tasks, records, monkeypatch):
    """As by workers, whose results come many at once."""
    clock = [0.0]

    class AtOnce(Measurer):
        def __call__(self, candidates, alone=False):
            found = list(super().__call__(candidates, alone))
            clock[0] += len(found)
            for left, result in zip(reversed(range(len(found))), found):
                self.ready = left
                yield result

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    measure = AtOnce()
    found = tuner(tasks, records, measure)
    found.run(budget=20)
    assert found.measured <= len(measure.seen) == len(records)


def test_a_config_that_was_right_and_is_wrong_later_is_not_taken(tasks, records):
    class Racing(Measurer):
        """The best config is wrong the second time."""

        def measure(self, task, cfg):
            result = super().measure(task, cfg)
            if self.seen.count((task.name, (5, 3))) > 1 and self.seen[-1][1] == (5, 3):
                return Measurement.failed("wrong", "the outputs differ from run to run", result.config)
            return result

    found = tuner(tasks, records, Racing())
    found.run(trials=10_000)
    assert all(t.best != best and t.time(t.best) == pytest.approx(2e-3) for t in found.tasks
               if (best := (("x", 5), ("y", 3))) in t.wrong)  # fmt: skip
    assert sum(bool(t.wrong) for t in found.tasks) == 2


def test_progress_by_trials(tasks, records):
    told = []
    tuner(tasks, records, Measurer(), progress=lambda *what: told.append(what)).run(trials=5)
    assert [done for text, done, _ in told if "confirming" not in text] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "says"),
    [({"strategy": "luck"}, "strategy 'luck': expected one of annealing"), ({"objective": "x"}, "rank")],
)
def test_wrong_options(tasks, records, options, says):
    with pytest.raises(InputError, match=says):
        tuner(tasks, records, Measurer(), **options)


def test_how_long_must_be_said(tasks, records):
    with pytest.raises(InputError, match="how long"):
        tuner(tasks, records, Measurer()).run()


@pytest.mark.parametrize(
    "limits", [{"budget": "10m"}, {"budget": math.nan}, {"budget": -1.0}, {"trials": 2.5}, {"trials": -1}]
)
def test_what_is_no_limit_is_refused(tasks, records, limits):
    (name,) = limits
    with pytest.raises(InputError, match=f"{name} is .*: expected a"):
        tuner(tasks, records, Measurer()).run(**limits)
    with pytest.raises(InputError, match=f"{name} is .*: expected a"):
        burnish.tune("no such file.onnx", **limits)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_for_real(tmp_path, strategy):
    """Matrix products, built and measured: every candidate is right, and the model learns from some."""
    if strategy == "annealing":
        require_module("xgboost")
    records = Records(tmp_path / "records.jsonl", shipped=False)
    pairs = [
        Wanted(op_task(MatMul(), "f32[24,20]", "f32[20,32]"), 2, 2),
        Wanted(op_task(MatMul(), "f32[9,16]", "f32[16,24]"), 1, 1),
    ]
    found = Tuner(pairs, records, threads=1, strategy=strategy, seconds=0.002)
    found.run(trials=14)
    assert not [r for r in records if r.error] and found.measured == 14
    assert 0 < found.after <= found.before < float("inf")


class Planned:
    """A plan of two places that one of two tasks may take; the faster one by the records takes both."""

    def __init__(self, tasks, records):
        self.tasks, self.records, self.asked = [w.task for w in tasks], records, 0

    def __call__(self):
        self.asked += 1
        times = []
        for task in self.tasks:
            known = [r.seconds for r in self.records.of(task) if r.seconds is not None]
            times.append(min(known, default=8e-3))
        best = times.index(min(times))
        return [
            Wanted(task, 2 * (n == best), 2 * (n == 0), (min(times),) * 2 * (n != best), times[n])
            for n, task in enumerate(self.tasks)
        ]


def test_a_rival_that_becomes_faster_enters_the_plan(tasks, records):
    plan = Planned(tasks, records)
    measure = Measurer(scale={"double": 1e-3, "other": 0.9e-3})
    found = tuner(plan(), records, measure, replan=plan)
    found.run(trials=40)
    first, second = found.tasks
    assert (first.count, first.wanted.predicted_count) == (0, 2)
    assert (second.count, second.wanted.predicted_count) == (2, 0)
    assert found.before == pytest.approx(2 * 7e-3) and found.after == 2 * second.after < 2 * 7e-3 * 0.9
    assert len(second.times[second.best]) == CONFIRMED, "what enters the plan is confirmed"
    assert second.trials > 1 and plan.asked < 40


def test_trials_go_where_trials_gain(tasks, records):
    """The task that runs three times is as fast with any config."""

    class Flat(Measurer):
        def measure(self, task, cfg):
            result = super().measure(task, cfg)
            return replace(result, seconds=7e-3) if task.name == "double" else result

    found = tuner(tasks, records, Flat())
    found.run(trials=64)
    flat, other = found.tasks
    assert flat.trials < other.trials


def test_one_slow_moment_does_not_move_a_plan(tasks, records):
    class Slow(Measurer):
        def measure(self, task, cfg):
            first = not self.seen
            result = super().measure(task, cfg)
            return replace(result, seconds=3 * result.seconds) if first else result

    measure, plan = Slow(scale={"double": 1e-3, "other": 2e-3}), Planned(tasks, records)
    found = tuner(plan(), records, measure, replan=plan)
    found.run(trials=3)
    assert measure.seen[:3] == [("double", (1, 1)), ("other", (1, 1)), ("double", (1, 1))]
    assert [t.count for t in found.tasks] == [2, 0] and found.before == 2 * 7e-3


def test_what_a_plan_brings_is_measured_in_turn(tasks, records):
    """The first plan's default is slow, so that another task enters: its default comes next."""
    slow = Measurer(scale={"double": 1.0})
    plan = Planned(tasks, records)
    found = tuner(plan(), records, slow, replan=plan)
    found.run(trials=2)
    assert slow.seen[:2] == [("double", (1, 1)), ("other", (1, 1))]
    assert [t.count for t in found.tasks] == [0, 2]


def test_rivals_far_away_get_no_trials(tasks, records):
    one, other = tasks
    far = replace(other, count=0, predicted_count=0, targets=(1e-4,), expected=1.0)
    measure = Measurer()
    tuner([one, far], records, measure).run(trials=20)
    assert {name for name, _ in measure.seen} == {"double"}
    near = replace(far, targets=(6e-3,), expected=6.5e-3)
    tuner([one, near], records, measure).run(trials=5)
    assert ("other", (1, 1)) in measure.seen


def test_the_forecast(tasks, records, monkeypatch):
    """Where a trial takes a second, it says how long, and how much faster; before, by others."""
    clock = [0.0]

    class Slow(Measurer):
        def measure(self, task, cfg):
            clock[0] += 1
            return super().measure(task, cfg)

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    told = []
    found = tuner(tasks, records, Slow(), announce=told.append)
    found.run(trials=80)
    first, later = told
    assert later == found.forecast and later.trials == first.trials == 80
    assert later.seconds == pytest.approx(clock[0], rel=0.25) and 0 < later.calibration < 40
    assert later.before == found.before and 1 < later.gain < 7
    assert first.calibration == 0 and 1 < first.gain < 1.2 and first.seconds == pytest.approx(8)


def test_the_forecast_of_a_run_that_goes_on(tasks, records, monkeypatch):
    """What trials take is not known yet when all defaults are in the records and planning took long."""
    clock = [0.0]

    class Slow(Measurer):
        def measure(self, task, cfg):
            clock[0] += 1
            return super().measure(task, cfg)

    tuner(tasks, records, Measurer()).run(trials=2)
    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    found = tuner(tasks, records, Slow())
    found.run(budget=50, started=-15.0)
    assert found.forecast.seconds == pytest.approx(50, rel=0.25) and found.forecast.trials < 50


def test_the_course_of_a_run(tasks, records):
    found = tuner(tasks, records, Measurer(wrong={(3, 4)}))
    found.run(trials=57)
    assert len(found.history) == len(records) and {t.task for t in found.history} == {
        w.task.digest for w in tasks
    }
    bests = [t.best for t in found.history if t.task == tasks[0].task.digest]
    assert bests == sorted(bests, reverse=True) and found.history[-1].network == found.after
    assert [t.batch for t in found.history[:2]] == [0, 0]
