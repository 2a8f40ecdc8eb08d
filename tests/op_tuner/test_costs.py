"""Costs come from records where there are any, and what is measured is kept."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
from burnish.compiler.ir.graph import Graph, Node
from burnish.compiler.ir.types import Layout, TensorType
from burnish.compiler.ops.fused import FusedOp
from burnish.compiler.ops.movement import Identity
from burnish.compiler.price import Price
from burnish.compiler.target import host
from burnish.errors import InputError
from burnish.graph_passes.make_tasks import task_of
from burnish.op_tuner import costs, isolate
from burnish.op_tuner.costs import MeasuredCosts, Predictor, conversion_task, made_by
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.records import RecordedConfig, read
from burnish.op_tuner.space import Space

from .tasks import Doing, double, leave, record

FAST = {"seconds": 0.001, "evict": 0}


def known(task, **fields):
    burnish, llvm = made_by().split(" ", 1)
    return record(task=task.digest, **{"burnish": burnish, "llvm": llvm, "evict": 0, **fields})


def test_measured_once_then_from_the_record(tmp_path):
    path, told = tmp_path / "r.jsonl", []
    tasks = [double(10), double(20), double(10)]
    first = MeasuredCosts(path, host(), 1, lambda *step: told.append(step), **FAST)
    assert first.ensure(tasks) == 2 and first.measured == 2
    assert told == [("measuring double", n, 2) for n in (1, 2)]
    made = [first(t) for t in tasks]
    assert made[0] == made[2] and {c.source for c in made} == {"measured"}
    kept = sorted(read(path)[0], key=lambda r: r.task != tasks[0].digest)
    assert [r.id for r in kept] == [c.name for c in made[:2]]
    assert kept[0].key == tasks[0].key and kept[0].hardware == this_hardware() and kept[0].config["lanes"]
    again = MeasuredCosts(path, host(), 1, **FAST)
    assert again.ensure(tasks) == 0
    assert [(again(t).seconds, again(t).source) for t in tasks] == [(c.seconds, "record") for c in made]


def test_an_interrupted_run_goes_on_where_it_stood(tmp_path, monkeypatch):
    path, tasks = tmp_path / "r.jsonl", [double(n) for n in (10, 20, 30)]
    calls = []

    def stops(self, candidates, alone):
        assert alone
        for n, candidate in enumerate(candidates):
            calls.append(candidate.task.digest)
            if len(calls) == 2:
                raise KeyboardInterrupt
            yield n, Measurement(1e-6, 0.0, 5)

    monkeypatch.setattr(costs.Local, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        MeasuredCosts(path, host(), 1, **FAST).ensure(tasks)
    assert MeasuredCosts(path, host(), 1, **FAST).ensure(tasks) == 2
    assert calls == [tasks[i].digest for i in (0, 1, 1, 2)]


def measure_by(monkeypatch, measurement):
    """Instead of measuring: what measurement(task, whether it is the second one) gives; digests of tasks."""
    calls = []

    def measure(self, candidates, alone):
        for n, candidate in enumerate(candidates):
            calls.append(candidate.task.digest)
            yield n, measurement(candidate.task, calls.count(calls[-1]) > 1)

    monkeypatch.setattr(costs.Local, "__call__", measure)
    return calls


def test_the_most_disturbed_are_measured_again_at_the_end(tmp_path, monkeypatch):
    tasks = [double(n) for n in range(10, 18)]

    def shaken(task, again):
        spread = {2: 0.5, 5: 0.9, 6: 0.6}.get(tasks.index(task), 0.01)
        return Measurement(1e-3 if again else 2e-3, 0.0 if again else spread, 5)

    calls = measure_by(monkeypatch, shaken)
    cost, told = MeasuredCosts(tmp_path / "r.jsonl", host(), 1, lambda *s: told.append(s), **FAST), []
    assert cost.ensure(tasks) == 8
    assert calls == [t.digest for t in (*tasks, tasks[5], tasks[6])]
    assert cost.price_of(tasks[5]).seconds == 1e-3 and cost.price_of(tasks[2]).seconds == 2e-3
    assert told[-1][1:] == (10, 10)


def test_what_was_measured_twice_costs_what_its_records_say(tmp_path, monkeypatch):
    """A sure time, though a disturbed one was faster: the next plan goes by records."""
    tasks = [double(n) for n in range(10, 14)]

    def shaken(task, again):
        spread = 0.5 if task is tasks[1] and not again else 0.01
        return Measurement(1.2e-3 if again else 1e-3, spread, 20)

    calls = measure_by(monkeypatch, shaken)
    cost = MeasuredCosts(tmp_path / "r.jsonl", host(), 1, **FAST)
    assert cost.ensure(tasks) == 4 and len(calls) == 5
    later = MeasuredCosts(tmp_path / "r.jsonl", host(), 1, **FAST)
    assert [cost.price_of(t).seconds for t in tasks] == [later.price_of(t).seconds for t in tasks]
    assert cost.price_of(tasks[1]).seconds == 1.2e-3


def test_a_task_that_fails_costs_without_end_and_is_tried_twice(tmp_path):
    path, task = tmp_path / "r.jsonl", double()
    options = {**FAST, "pick_config": lambda task: Doing(leave)}
    for measured in (1, 1, 0):
        cost = MeasuredCosts(path, host(), 1, **options)
        assert math.isinf(cost(task).seconds) and cost.measured == measured
    assert [r.error for r in read(path)[0]] == ["exit", "exit"]


def test_what_dies_is_recorded_with_all_answers(tmp_path, monkeypatch):
    def die(*asked, **options):
        os._exit(3)

    monkeypatch.setattr(isolate, "build", die)
    path, task = tmp_path / "r.jsonl", double()
    for pick in (None, lambda task: RecordedConfig({"lanes": 4, "grain": 4096})):
        MeasuredCosts(path, host(), 1, pick_config=pick, **FAST)(task)
    first, second = read(path)[0]
    assert first.error == "exit" and tuple(first.config.items()) == Space(task).default() != ()
    assert second.error == "exit" and second.config == {"lanes": 4, "grain": 4096}


def test_what_counts_when_nothing_may_be_measured(tmp_path):
    path, task = tmp_path / "r.jsonl", double()

    def ask(**options):
        return MeasuredCosts(path, host(), 1, measure=False, **FAST, **options)

    with pytest.raises(InputError, match="nothing is known of the cost of double"):
        ask()(task)
    found = ask()
    found.records.add(known(task, hardware=replace(this_hardware(), cores=999), seconds=3.0))
    assert found(task).source == "sibling" and found(task).seconds == 3.0
    model = ask(predict=Predictor("a model", lambda task: 2.0))
    assert model(task) == Price(2.0, "predicted", "a model")
    model.records.add(known(task, burnish="older", seconds=1.0))
    assert ask()(task).seconds == 1.0 and ask()(task).source == "record"
    fresh = MeasuredCosts(path, host(), 1, **FAST)
    assert fresh(task).source == "measured", "an older compiler's record does not stand for this one's code"


def test_a_conversion_is_the_task_of_a_copy_in_a_graph(tmp_path):
    blocked = Layout.channel_blocked(4, 16)
    type = TensorType.parse("f32[1,24,6,5]")
    pairs = [(None, blocked), (blocked, None), (blocked, Layout.channel_blocked(4, 8))]
    for source, wanted in pairs:
        inner = Node(Identity(), ("a",), ("b",))
        op = FusedOp(Graph("copy", ("a",), ("b",), (inner,), {"a": type, "b": type}))
        types = {"a": type.with_layout(source), "b": type.with_layout(wanted)}
        graph = Graph("g", ("a",), ("b",), (Node(op, ("a",), ("b",)),), types)
        want = task_of(graph, graph.nodes[0], host(), 1)
        made = conversion_task(type, source, wanted, host(), 1)
        assert made.key == want.key
    cost = MeasuredCosts(tmp_path / "r.jsonl", host(), 1, **FAST)
    assert 0 < cost(conversion_task(type, None, blocked, host(), 1)).seconds < 0.01
