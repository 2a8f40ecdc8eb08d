"""Configs are taken by what they do in the network, here with times that are known; modules run in turns."""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from burnish.compiler.target import host
from burnish.compiler.templates import registry
from burnish.op_tuner import own_cores
from burnish.op_tuner.cores import divide, reserved
from burnish.op_tuner.costs import MeasuredCosts, record_of
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.isolate import Spans
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.record import plain
from burnish.op_tuner.records import Records, best_per_task, read
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner
from burnish.op_tuner.turns import LEAST_ROUNDS, MOST_ROUNDS, Loaded, Turns, _order, take_turns
from burnish.op_tuner.verdict import confirmed
from burnish.op_tuner.whole_plans import plan_pair
from burnish.runtime import capi
from burnish.runtime.binding import StepTime, raise_code

from .tasks import double, hang, record

ALONE = {1: 10e-3, 2: 7e-3, 3: 8e-3, 4: 9e-3, 5: 11e-3}  # by the answer x; the default is 1


class Question:
    def params(self, task, cfg):
        return cfg.choose("x", range(1, 6), 1)


class Alone:
    """A measurer that knows the costs."""

    def __init__(self):
        self.hardware, self.spans, self.seen = this_hardware(), Spans(), []
        self.idle, self.ready = (), 0

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            x = Question().params(candidate.task, candidate.config)
            self.seen.append(x)
            config = {k: plain(v) for k, v in candidate.config.chosen.items()}
            yield n, Measurement(ALONE[x], 0.0, 5, config=config)


class Slow(Alone):
    """A trial takes a second."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __call__(self, candidates, alone=False):
        for found in super().__call__(candidates, alone):
            self.clock[0] += 1
            yield found


class Network:
    """Modules whose kernels take so long by x, `noise` more or less by turn; that of `bad` fails."""

    name, differs, preparing = "net", False, 3.0

    def __init__(self, inside, noise=0.0, bad=None, interrupted=False):
        self.inside, self.noise, self.bad, self.interrupted = inside, noise, bad, interrupted
        self.asked = []

    def __call__(self, variants, seconds, time_limit):
        xs = [{digest: dict(point)["x"] for digest, point in v.items()} for v in variants]
        self.asked.append([set(v.values()) for v in xs])
        if self.interrupted:
            raise KeyboardInterrupt
        for n, v in enumerate(xs):
            if self.bad in v.values():
                return Turns([], n, "crash", "SIGSEGV")
        disturbed = [1 + self.noise * (r % 5 - 2) for r in range(20)]
        rounds = [
            [{d: self.inside[x] * (f if n else 1) for d, x in v.items()} for n, v in enumerate(xs)]
            for f in disturbed
        ]
        return Turns(rounds, preparing=1.0)

    def keep(self, task, point, kernel):
        raise AssertionError("the measurer builds nothing")


class SlowNetwork(Network):
    """What it takes to compare passes on the clock."""

    def __init__(self, clock, *how):
        super().__init__(*how)
        self.clock = clock

    def __call__(self, variants, seconds, time_limit):
        self.clock[0] += self.preparing + seconds
        return super().__call__(variants, seconds, time_limit)


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Question())
    return double()


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records.jsonl", shipped=False)


def tuned(task, records, network, trials=5, calls=2):
    wanted = [Wanted(task, calls, calls)]
    found = Tuner(wanted, records, threads=1, strategy="random", measure=Alone(), network=network)
    found.run(trials=trials)
    return found, found.tasks[0]


def picked(task, records):
    return Question().params(task, Records(records.path, shipped=False).pick_config(task))


def test_nothing_is_compared_before_all_defaults_are_known(task, records):
    network = Network({1: 1.0})
    wanted = [Wanted(task, 1, 1), Wanted(replace(task, name="other"), 1, 1)]
    found = Tuner(wanted, records, threads=1, strategy="random", measure=Alone(), network=network)
    found.run(trials=1)
    assert not network.asked and "default configs" in found.confirming.failure


def test_the_forecast_has_the_time_to_compare(task, records, monkeypatch):
    clock = [0.0]

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    network = SlowNetwork(clock, {1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9})
    wanted = [Wanted(replace(task, name=f"task{n}"), 1, 1) for n in range(3)]
    found = Tuner(wanted, records, threads=1, strategy="random", measure=Slow(clock), network=network)
    found.run(trials=15)
    assert found.forecast.seconds == pytest.approx(clock[0], rel=0.25) and clock[0] > 15 + network.preparing
    assert found.spent.building + found.spent.running >= clock[0] - 15, "modules are made and run"


@pytest.mark.parametrize(
    ("inside", "taken", "share"),
    [
        ({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9}, 2, 0.7),  # as alone
        ({1: 1.0, 2: 1.1, 3: 0.8, 4: 0.9}, 3, 0.8),  # the fastest alone loses in the network
        ({1: 1.0, 2: 1.1, 3: 1.0, 4: 0.995}, 1, 1.0),  # no gain beyond doubt
    ],
)
def test_the_network_decides(task, records, inside, taken, share):
    network = Network(inside)
    found, state = tuned(task, records, network)
    assert network.asked == [[{1}, {2}, {3}, {4}]], "the default and the fastest, once"
    assert dict(state.best) == {"x": taken} and dict(state.fastest) == {"x": 2}
    assert found.before == 20e-3 and found.after == pytest.approx(20e-3 * share)
    assert picked(task, records) == taken
    price = MeasuredCosts(records, host(), 1, measure=False).price_of(task)
    assert price.seconds == pytest.approx(10e-3 * share) and price.default == 10e-3
    (exported,) = best_per_task(read(records.path)[0])
    assert exported.config == {"x": taken} and exported.seconds == ALONE[taken] and not exported.network


def test_a_gain_within_the_noise_is_none(task, records):
    inside = {1: 1.0, 2: 0.95, 3: 1.0, 4: 1.0}
    assert dict(tuned(task, records, Network(inside, noise=0.002))[1].best) == {"x": 2}
    noisy = Records(records.path.with_name("noisy.jsonl"), shipped=False)
    assert dict(tuned(task, noisy, Network(inside, noise=0.1))[1].best) == {"x": 1}


def test_what_the_network_has_seen_is_not_compared_again(task, records):
    inside = {1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9}
    tuned(task, records, Network(inside))
    network = Network(inside)
    found, state = tuned(task, records, network, trials=1)
    assert network.asked == [] and dict(state.best) == {"x": 2} and found.after == pytest.approx(14e-3)


def test_what_records_would_take_is_compared_though_it_is_slow_alone(task, records):
    """An older compiler's network found it; tuning must not lose it to what is faster alone."""
    alone = record_of(task, Measurement(7e-3, 0.0, 5, config={"x": 5}), 1, 0)
    records.add(replace(alone, burnish="0" * 16))
    assert picked(task, records) == 5
    network = Network({1: 1.0, 2: 0.9, 3: 0.8, 4: 0.7, 5: 0.6})
    state = tuned(task, records, network)[1]
    assert network.asked == [[{1}, {5}, {2}, {3}]], "the default, what was told, the fastest"
    assert dict(state.best) == {"x": 5} and picked(task, records) == 5
    network = Network(network.inside)
    tuned(task, records, network, trials=1)
    assert network.asked == [[{1}, {4}]], "what had no place before"


def test_what_records_would_take_is_measured_though_the_default_is_known(task, records):
    """A tuning that ended before it had got so far; until then it is what is taken."""
    alone = record_of(task, Measurement(7e-3, 0.0, 5, config={"x": 5}), 1, 0)
    records.add(replace(alone, burnish="0" * 16))
    records.add(record_of(task, Measurement(ALONE[1], 0.0, 5, config={"x": 1}), 1, 0))
    assert picked(task, records) == 5
    found, _ = tuned(task, records, Network({1: 1.0, 5: 1.1}), trials=1)
    assert found.measured == 1 and [h.seconds for h in found.history] == [ALONE[5]]
    assert picked(task, records) == 1


def test_a_task_that_the_plan_does_not_run_is_not_compared(task, records):
    network = Network(ALONE)
    tuned(task, records, network, calls=0)
    assert network.asked == []


def test_an_interrupt_keeps_everything(task, records):
    found, state = tuned(task, records, Network({}, interrupted=True))
    assert found.interrupted and len(records) == 5 and dict(state.best) == {"x": 2}
    network = Network({1: 1.0, 2: 1.1, 3: 0.8, 4: 0.9})
    found, state = tuned(task, Records(records.path, shipped=False), network, trials=1)
    assert len(network.asked) == 1 and dict(state.best) == {"x": 3}


def test_a_module_that_fails_is_its_configs_outcome(task, records):
    network = Network({1: 1.0, 3: 0.8, 4: 0.9}, bad=2)
    found, state = tuned(task, records, network)
    assert network.asked[1:] == [[{1}, {3}, {4}]] and dict(state.best) == {"x": 3}
    (failed,) = (r for r in records.in_networks(task) if r.error)
    assert failed.error == "crash" and failed.config == {"x": 2} and not found.confirming.failure
    assert picked(task, records) == 3


class Wrong(Network):
    """The module fails in which the task of this digest has the fastest config alone; what it failed for."""

    digest, error = "", "crash"

    def __call__(self, variants, seconds, time_limit):
        found = super().__call__(variants, seconds, time_limit)
        xs = [dict(v[self.digest])["x"] for v in variants]
        return Turns([], xs.index(2), self.error, "what it said") if 2 in xs else found


def several(task, records, network, **how):
    """Tunes four tasks; by name, what is taken of each."""
    tasks = {name: replace(task, name=name) for name in "abcd"}
    network.digest = tasks["b"].digest
    wanted = [Wanted(t, 1, 1) for t in tasks.values()]
    found = Tuner(wanted, records, threads=1, strategy="random", measure=Alone(), network=network)
    found.run(**how)
    return found, {name: picked(t, records) for name, t in tasks.items()}, tasks["b"]


def test_of_several_configs_in_a_module_that_fails_the_one_is_found(task, records):
    network = Wrong({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9})
    found, taken, bad = several(task, records, network, trials=20)
    assert taken == {"a": 2, "b": 3, "c": 2, "d": 2} and not found.confirming.failure
    (failed,) = (r for t in found.tasks for r in records.in_networks(t.task) if r.error)
    assert (failed.task, failed.config, failed.error) == (bad.digest, {"x": 2}, "crash")


def test_where_there_is_no_time_to_find_it_none_of_them_is_taken(task, records, monkeypatch):
    clock = [0.0]

    class Slow(Wrong):
        def __call__(self, variants, seconds, time_limit):
            clock[0] += 100
            return super().__call__(variants, seconds, time_limit)

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    _, taken, _ = several(task, records, Slow({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9}), trials=20, budget=50.0)
    assert set(taken.values()) == {3}


def test_a_module_for_which_memory_is_short_is_no_configs_outcome(task, records):
    network = Wrong({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9})
    network.error = "memory"
    found, taken, _ = several(task, records, network, trials=20)
    assert set(taken.values()) == {3} and not found.confirming.failure, "the other modules are compared"
    assert not [r for t in found.tasks for r in records.in_networks(t.task) if r.error]


def test_memory_for_one_module_alone(task, records):
    class Large(Network):
        def __call__(self, variants, seconds, time_limit):
            self.asked.append(len(variants))
            return Turns([], 1, "memory", "there is none")

    network = Large({})
    found, state = tuned(task, records, network)
    assert network.asked == [4, 3, 2] and "not enough memory" in found.confirming.failure
    assert dict(state.best) == {"x": 2} and not records.in_networks(task)


def test_what_a_late_plan_brings_is_measured_before_it_is_compared(task, records, monkeypatch):
    """Planning again at the end, when there is no time to search, may bring a task that is new."""
    clock, late = [0.0], replace(task, name="late")
    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    network = Network({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9, 5: 1.0})
    network.preparing = 1.0
    first = [Wanted(replace(task, name=name), 1, 1) for name in "abcdefghijkl"]
    found = Tuner(
        *(first, records),
        **{"threads": 1, "strategy": "random", "measure": Slow(clock), "network": network},
        replan=lambda: [*first, Wanted(late, 1, 0)] if clock[0] > 20 else first,
    )
    found.run(budget=30.0)
    assert network.asked and not found.confirming.failure
    assert late.digest in {t.task.digest for t in found.tasks if t.default_known}


def test_a_config_that_fails_in_the_network_is_not_taken_though_no_other_was_compared(task, records):
    for x in (1, 2, 3):
        alone = Measurement(ALONE[x], 0.0, 5, config={"x": x})
        records.add(record_of(task, alone, 1, 0))
    crashed = Measurement.failed("crash", "SIGSEGV", {"x": 2})
    records.add(replace(record_of(task, crashed, 1, 0), network="net"))
    found = Tuner([Wanted(task, 2, 2)], records, threads=1, strategy="random", measure=Alone())
    assert dict(found.tasks[0].best) == {"x": 3} and found.after == 2 * ALONE[3]
    costs = MeasuredCosts(records, host(), 1, measure=False)
    assert picked(task, records) == 3 and costs(task).seconds == ALONE[3]
    assert [r.config for r in best_per_task([*records, *records.in_networks(task)])] == [{"x": 3}]


def test_a_network_that_fails_with_default_configs(task, records):
    network = Network({}, bad=1)
    found, state = tuned(task, records, network)
    assert "crash" in found.confirming.failure and len(network.asked) == 1
    assert not records.in_networks(task) and dict(state.best) == {"x": 2}


class Plans(Network):
    """The plan of now is another one than that without measuring, whose module takes `first` seconds."""

    differs = True

    def __init__(self, inside, first, records, tasks):
        super().__init__(inside)
        self.first, self.records, self.tasks = first, records, tasks

    def pair(self):
        return plan_pair(*self.tasks, self.records, this_hardware())

    def __call__(self, variants, seconds, time_limit):
        assert variants[-1] is None and None not in variants[:-1]
        found = super().__call__(variants[:-1], seconds, time_limit)
        return replace(found, rounds=[[*each, {"other": self.first}] for each in found.rounds])


@pytest.mark.parametrize(("first", "refused"), [(0.79, True), (0.8, True), (0.802, True), (0.9, False)])
def test_plans_are_compared_with_the_best_configs(task, records, first, refused):
    """Its best config takes 0.8, what it takes with the default one is of no account."""
    tasks = ([replace(task, name="first")], [task, task])
    network = Plans({1: 1.0, 2: 1.1, 3: 0.8, 4: 0.9}, first, records, tasks)
    _, state = tuned(task, records, network, calls=1)
    pair = network.pair()
    assert len(network.asked) == 1 and dict(state.best) == {"x": 3}
    assert len(pair.heard) == 1 and pair.refused == refused
    assert pair.heard[0].seconds == pytest.approx(0.8) and pair.heard[0].against == first
    again = Plans({}, first, records, tasks)
    tuned(task, records, again, trials=1, calls=1)
    assert again.asked == [], "it is known"
    assert plan_pair(*tasks, Records(records.path, shipped=False), this_hardware()) == pair
    records.add(*(replace(r, config={"x": 5}, seconds=r.seconds / 2) for r in records.in_networks(task)))
    pair = network.pair()
    assert not pair.heard and not pair.refused, "with another config it is another plan"
    assert pair.given_up == refused, "until that is compared"
    beside = plan_pair(tasks[0], [replace(task, name="another")], records, this_hardware())
    assert not beside.heard and beside.key != pair.key and not beside.refused
    assert beside.given_up == refused, "so are other kernels beside the same plan"
    elsewhere = plan_pair([replace(task, name="another")], [task], records, this_hardware())
    assert not elsewhere.before and not elsewhere.given_up


def test_a_config_that_was_wrong_is_neither_compared_nor_taken(task, records):
    for x in (1, 2, 3):
        records.add(record_of(task, Measurement(ALONE[x], 0.0, 5, config={"x": x}), 1, 0))
    inside = replace(
        record_of(task, Measurement(0.5, 0.0, 5, config={"x": 2}), 1, 0), network="net", against=1.0
    )
    records.add(replace(inside, spread=0.0, runs=20))
    records.add(record_of(task, Measurement.failed("wrong", "once", {"x": 2}), 1, 0))
    network = Network({1: 1.0, 2: 0.5, 3: 0.8, 4: 0.9, 5: 1.0})
    _, state = tuned(task, records, network, trials=1)
    assert dict(state.best) != {"x": 2} and picked(task, records) != 2
    assert network.asked and all(2 not in xs for asked in network.asked for xs in asked)


def test_where_the_default_is_wrong_all_take_the_same(task, records):
    """What the network liked, and not the fastest alone."""
    times = {x: record_of(task, Measurement(ALONE[x], 0.0, 5, config={"x": x}), 1, 0) for x in (1, 2, 3)}
    liked = replace(times[3], seconds=0.7, against=1.0, spread=0.0, runs=20, network="net")
    wrong = record_of(task, Measurement.failed("wrong", "once", {"x": 1}), 1, 0)
    records.add(*times.values(), liked, wrong)
    found = Tuner([Wanted(task, 2, 2)], records, threads=1, strategy="random", measure=Alone())
    costs = MeasuredCosts(records, host(), 1, measure=False)
    assert ALONE[2] < ALONE[3] and dict(found.tasks[0].best) == {"x": 3} and picked(task, records) == 3
    assert costs(task).seconds == ALONE[3] and found.after == 2 * ALONE[3]


def test_what_an_older_compiler_made_of_a_plan_is_asked_again(task, records):
    tasks = ([replace(task, name="first")], [task, task])
    network = Plans({1: 1.0, 2: 1.1, 3: 0.8, 4: 0.9}, 0.7, records, tasks)
    tuned(task, records, network, calls=1)
    assert network.pair().refused
    older = Records(records.path.with_name("older.jsonl"), shipped=False)
    older.add(*records, *records.in_networks(task), *(replace(r, burnish="0") for r in records.of_plans))
    pair = plan_pair(*tasks, older, this_hardware())
    assert not pair.heard and not pair.refused and pair.given_up, "until it is compared again"


def test_defaults_that_the_last_plan_brings_end_with_the_time(task, records, monkeypatch):
    clock = [0.0]

    class Slow(Alone):
        def __call__(self, candidates, alone=False):
            for found in super().__call__(candidates, alone):
                clock[0] += 5 if alone else 1
                yield found

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    network = Network({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9, 5: 1.0})
    first = [Wanted(replace(task, name=name), 1, 1) for name in "abcdefghijkl"]
    late = [Wanted(replace(task, name=f"late{n}"), 1, 0) for n in range(12)]
    found = Tuner(
        *(first, records),
        **{"threads": 1, "strategy": "random", "measure": Slow(), "network": network},
        replan=lambda: [*first, *late] if clock[0] > 20 else first,
    )
    found.run(budget=30.0)
    assert clock[0] <= 36 and not network.asked and "default configs" in found.confirming.failure


def test_what_a_late_plan_brings_is_measured_though_trials_are_used_up(task, records):
    network = Network({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9, 5: 1.0})
    first, late = [Wanted(task, 1, 1)], replace(task, name="late")
    found = Tuner(
        *(first, records),
        **{"threads": 1, "strategy": "random", "measure": Alone(), "network": network},
        replan=lambda: [*first, Wanted(late, 1, 0)] if found.measured >= 5 else first,
    )
    found.run(trials=5)
    assert found.measured == 5 and network.asked and not found.confirming.failure


def test_a_plan_that_fails_is_refused(task, records):
    tasks = ([replace(task, name="first")], [task, task])
    network = Plans({}, 1.0, records, tasks)
    network.bad = 1
    found, _ = tuned(task, records, network, calls=1)
    assert not found.confirming.failure and network.pair().refused
    assert [r.error for r in network.pair().heard] == ["crash"] and not records.in_networks(task)
    assert plan_pair(*tasks, Records(records.path, shipped=False), this_hardware()).refused


@pytest.mark.parametrize("error", ["memory", "timeout"])
def test_a_plan_is_not_refused_for_want_of_memory_or_time(task, records, error):
    class Short(Plans):
        def __call__(self, variants, seconds, time_limit):
            return Turns([], 0, error, "there is none", blameless=True)

    network = Short({}, 1.0, records, ([replace(task, name="first")], [task, task]))
    found, _ = tuned(task, records, network, calls=1)
    assert f"{error} of the network's module" in found.confirming.failure
    assert not network.pair().heard and not records.in_networks(task)


def test_a_plan_without_measuring_that_fails_leaves_the_others(task, records):
    class Failing(Plans):
        def __call__(self, variants, seconds, time_limit):
            if variants[-1] is None:
                return Turns([], len(variants) - 1, "memory", "there is none")
            return Network.__call__(self, variants, seconds, time_limit)

    network = Failing({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9}, 1.0, records, ([task], [task, task]))
    found, state = tuned(task, records, network)
    assert network.asked == [[{1}, {2}, {3}, {4}]] and dict(state.best) == {"x": 2}
    assert not network.pair().heard and not found.confirming.failure


def test_comparing_is_reserved_from_the_budget(task, records, monkeypatch):
    """A trial takes a second, and so does comparing."""
    clock = [0.0]

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    tasks = [Wanted(replace(task, name=name), 1, 1) for name in "abcdefghijkl"]
    network = SlowNetwork(clock, {1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9, 5: 1.0})
    found = Tuner(tasks, records, threads=1, strategy="random", measure=Slow(clock), network=network)
    found.run(budget=30.0)
    assert network.asked and found.measured < 30 and 24 <= clock[0] <= 31


def test_a_network_that_is_too_slow_for_the_budget_is_not_compared(task, records, monkeypatch):
    """Its shortest comparison would take longer than the whole budget."""
    clock = [0.0]

    monkeypatch.setattr("burnish.op_tuner.tuner.time.monotonic", lambda: clock[0])
    network = Network({1: 1.0, 2: 0.7, 3: 0.8, 4: 0.9, 5: 1.0})
    tasks = [Wanted(replace(task, name=name), 200, 200) for name in "abcdefghijkl"]
    found = Tuner(tasks, records, threads=1, strategy="random", measure=Slow(clock), network=network)
    found.run(budget=30.0)
    assert not network.asked and "time was over" in found.confirming.failure and clock[0] <= 31


def test_records_of_networks_read_back_and_old_ones_too(task, records):
    inside = record(task=task.digest, network="net", against=2e-3)
    old = record(task=task.digest)
    assert "network" not in old.line and "against" not in old.line
    records.add(old, inside)
    assert read(records.path)[0] == [old, inside]
    assert list(records) == records.of(task) == [old] and records.in_networks(task) == [inside]


def test_the_share_of_several_networks_is_their_median():
    default = record(network="net", against=1e-3, config={"x": 1})
    wins = [record(network="net", seconds=s, against=2e-3, config={"x": 2}) for s in (1e-3, 1.4e-3, 1.5e-3)]
    found = confirmed([default, *wins])
    assert found.config == (("x", 2),) and found.share == pytest.approx(0.7) and found.record == wins[1]
    assert confirmed([default]).share == 1.0 and confirmed([]) is None
    assert confirmed([default, record(seconds=1e-9, config={"x": 3})]).config == (("x", 1),)


class Context:
    """Two steps, the second a copy."""

    def __init__(self, act=lambda: None):
        self.act, self.runs = act, 0

    def run(self):
        self.runs += 1
        self.act()

    def run_profiled(self):
        return [StepTime("k", "n", 1000 * (1 + self.runs)), StepTime("copy", "", 10)]


def turns(*acts, seconds=0.0, time_limit=20.0, on_gpu=False):
    def make(n):
        return Loaded(Context(acts[n]), ["digest", ""])

    how = {"threads": 1, "seconds": seconds, "time_limit": time_limit, "on_gpu": on_gpu}
    return take_turns(make, len(acts), **how)


def nothing():
    pass


def test_turns(monkeypatch):
    monkeypatch.setattr(own_cores, "crowding", lambda threads: 1.0)
    found = turns(nothing, nothing)
    assert found.failed is None and len(found.rounds) == LEAST_ROUNDS
    times = [r[1]["digest"] for r in found.rounds]
    assert times == pytest.approx([1e-6 * (n + 2) for n in range(LEAST_ROUNDS)])
    assert [len(each) for each in found.rounds] == [2] * LEAST_ROUNDS
    assert len(turns(nothing, nothing, seconds=5.0).rounds) == MOST_ROUNDS


@pytest.mark.parametrize(("on_gpu", "again"), [(False, 1), (True, 0)])
def test_a_round_in_which_threads_shared_a_core_is_taken_again(monkeypatch, on_gpu, again):
    """As the twelfth one's, behind which they do; on a GPU that does not matter."""
    found = itertools.chain([1.0] * (2 + 2 * 11 + 1), [2.0], itertools.repeat(1.0))
    monkeypatch.setattr(own_cores, "crowding", lambda threads: next(found))
    slow = partial(time.sleep, 0.02)
    turned = turns(slow, slow, seconds=2.0, on_gpu=on_gpu)
    assert turned.failed is None and len(turned.rounds) > 12
    runs = turned.rounds[-1][0]["digest"] * 1e6 - 1
    assert round(runs) == len(turned.rounds) + again


@pytest.mark.parametrize("on_gpu", [False, True])
def test_rounds_wait_for_who_else_measures(monkeypatch, tmp_path, on_gpu):
    monkeypatch.setattr("burnish.op_tuner.cores.cache_dir", lambda: tmp_path)
    monkeypatch.setattr("burnish.op_tuner.turns.TURN", 0.1)
    start = time.monotonic()
    with reserved(divide(1).measuring, 0):
        found = turns(nothing, nothing, on_gpu=on_gpu)
    assert found.failed is None and len(found.rounds) >= LEAST_ROUNDS
    assert time.monotonic() - start > 0.1 * LEAST_ROUNDS, "nobody is waited for for ever"


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_each_module_begins_and_none_follows_itself(count):
    rounds = [_order(count, done) for done in range(2 * count)]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    course = [n for order in rounds for n in order]
    assert all(a != b for a, b in itertools.pairwise(course))
    assert count == 2 or {order[0] for order in rounds} == set(range(count))


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash"),
        (lambda: os._exit(3), "exit"),
        (hang, "timeout"),
        (lambda: [].pop(), "run"),
    ],
)
def test_whatever_a_module_does_is_heard(act, error):
    found = turns(nothing, act, nothing, time_limit=2.0 if act is hang else 20.0)
    assert (found.failed, found.error) == (1, error)


def test_no_module_is_to_blame_for_the_time_that_making_them_takes():
    def make(n):
        return hang() if n else Loaded(Context(nothing), ["digest", ""])

    found = take_turns(make, 2, threads=1, seconds=0.0, time_limit=2.0)
    assert (found.failed, found.error) == (0, "timeout") and "were not made within" in found.detail
    assert found.blameless


def test_no_module_is_to_blame_for_want_of_memory():
    def make(n):
        if n:
            raise_code(capi.NO_MEMORY, "cannot allocate 1 GB")
        return Loaded(Context(nothing), ["digest", ""])

    found = take_turns(make, 2, threads=1, seconds=0.0, time_limit=5.0)
    assert (found.failed, found.error, found.detail) == (1, "memory", "cannot allocate 1 GB")
    assert found.blameless
    assert not turns(nothing, lambda: [].pop()).blameless


def test_slow_networks_have_the_time_that_their_rounds_take(task, records):
    limits = []

    class Slow(Network):
        def __call__(self, variants, seconds, time_limit):
            limits.append((len(variants), seconds + time_limit))
            return super().__call__(variants, seconds, time_limit)

    found = Tuner([Wanted(task, 2, 2)], records, threads=1, measure=Alone(), network=Slow(dict(ALONE)))
    for x in ALONE:
        found.tasks[0].learn((("x", x),), ALONE[x])
    assert list(found.confirming.compare(found.tasks, 30.0, 1.0))
    ((modules, limit),) = limits
    assert modules == 4 and limit > 2 * modules * LEAST_ROUNDS * 30.0


def test_ctrl_c_ends_the_child(monkeypatch):
    monkeypatch.setattr("burnish.op_tuner.turns.Child.wait", lambda children: interrupt(children[0]))
    started, ended = time.monotonic(), SimpleNamespace(pid=0)

    def interrupt(child):
        ended.pid = child._pid
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns(hang, hang)
    assert time.monotonic() - started < 10
    with pytest.raises(ProcessLookupError):
        os.kill(ended.pid, 0)
