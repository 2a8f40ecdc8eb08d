"""Plans follow the records: what was measured to be faster enters, and compiling makes the same plan."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from burnish import network_turns, pipeline
from burnish.compiler.build_kernel import build_kernel
from burnish.compiler.target import host
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.plan_layout import PlanOptions
from burnish.kernel_cache import KernelStore, symbol
from burnish.models import zoo
from burnish.network_plans import NetworkPlans
from burnish.network_turns import NetworkTurns
from burnish.op_tuner.costs import record_of
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.record import PLAN
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Space
from burnish.op_tuner.turns import LEAST_ROUNDS, Turns
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def plans(tmp_path):
    graph = pipeline.optimise(import_onnx(zoo.build("digits")), host(), 1, stop_after="fuse")
    return NetworkPlans(graph, host(), 1, PlanOptions(), Records(tmp_path / "r.jsonl", shipped=False))


@pytest.fixture
def compiled(monkeypatch):
    """The digests of the tasks that a compilation takes."""
    taken = []

    class Store(KernelStore):
        def build_all(self, tasks, pick_config, progress=None):
            taken[:] = [t.digest for t in tasks.values()]
            return super().build_all(tasks, pick_config, progress)

    monkeypatch.setattr(pipeline, "KernelStore", Store)
    return taken


def tell(plans, task, seconds, point=None):
    config = dict(Space(task).default() if point is None else point)
    result = Measurement(seconds, 0.0, 5, config=config)
    records = plans._costs.records
    records.add(record_of(task, result, 1, plans.evict))
    return records


def settle(plans):
    """Every default of the plan takes a millisecond, and every rival more; conversions are cheap."""
    known = set()
    while new := [w for w in plans.wanted() if w.task.digest not in known]:
        for wanted in new:
            own = 1e-3 if wanted.count else 1.2e-3
            tell(plans, wanted.task, 1e-6 if wanted.task.name.startswith("identity") else own)
            known.add(wanted.task.digest)


def test_without_records_the_plan_is_the_predicted_one(plans):
    wanted = plans.wanted()
    assert plans.changes() == ()
    assert all(w.count == w.predicted_count for w in wanted) and sum(w.count for w in wanted) >= 6
    rivals = [w for w in wanted if w.targets]
    assert rivals and all(t > 0 and w.expected < math.inf for w in rivals for t in w.targets)


def test_a_rival_below_its_target_enters_and_is_compiled(plans, compiled):
    settle(plans)
    before = {w.task.digest: w for w in plans.wanted()}
    rival = max((w for w in before.values() if w.targets and not w.count), key=lambda w: w.targets[0])
    records = tell(plans, rival.task, min(rival.targets) / 2)
    after = {w.task.digest: w for w in plans.wanted()}
    assert after[rival.task.digest].count > rival.count and plans.changes()
    replaced = [w for w in after.values() if w.predicted_count and not w.count]
    assert replaced, "what it replaces stays, to compare with"
    module = pipeline.compile(zoo.build("digits"), threads=1, records=records.path)
    assert sorted(compiled) == sorted(d for d, w in after.items() for _ in range(w.count))
    plain = pipeline.compile(zoo.build("digits"), threads=1)
    assert rival.task.digest not in compiled
    x = {module.inputs[0].name: np.random.default_rng(0).random((1, 1, 8, 8), np.float32)}
    for a, b in zip(module.run(x).values(), plain.run(x).values()):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_plan_that_is_slower_in_the_network_is_not_made(plans, compiled):
    settle(plans)
    wanted = {w.task.digest: w for w in plans.wanted()}
    first = plans.calls
    rival = max((w for w in wanted.values() if w.targets and not w.count), key=lambda w: w.targets[0])
    records = tell(plans, rival.task, min(rival.targets) / 2)
    plans.wanted()
    assert plans.differs
    pair, now = plans.pair(), plans.calls
    pipeline.compile(zoo.build("digits"), threads=1, records=records.path)
    assert Counter(compiled) == now
    say(records, rival.task, pair, 2e-3)
    plans.wanted()
    assert plans.calls == first and not plans.differs and not plans.changes()
    pipeline.compile(zoo.build("digits"), threads=1, records=records.path)
    assert Counter(compiled) == first
    other = unlike_default(rival.task)
    tell(plans, rival.task, min(rival.targets) / 3, other)
    plans.wanted()
    assert plans.calls == now and not plans.pair().heard, "a tuner asks again"
    pipeline.compile(zoo.build("digits"), threads=1, records=records.path)
    assert Counter(compiled) == first, "a compilation waits for the answer"
    plans.final = True
    plans.wanted()
    assert plans.calls == first, "as a tuner does at its end"
    plans.final = False
    plans.wanted()
    pair = plans.pair()
    for _ in range(2):
        say(records, rival.task, pair, 0.5e-3)
    plans.wanted()
    assert plans.calls == now and plans.pair() != pair and not plans.pair().refused
    pipeline.compile(zoo.build("digits"), threads=1, records=records.path)
    assert Counter(compiled) == now


@pytest.mark.parametrize("slower", [True, False])
@pytest.mark.parametrize("disturbed", [True, False])
def test_a_measured_plan_is_compared_with_the_predicted_one(plans, tmp_path, monkeypatch, slower, disturbed):
    settle(plans)
    first = plans.calls
    rival = max((w for w in plans.wanted() if w.targets and not w.count), key=lambda w: w.targets[0])
    records = tell(plans, rival.task, min(rival.targets) / 2)
    taken = []

    def take_turns(make, count, **how):
        modules = [make(n) for n in range(count)]
        taken.append([set(loaded.steps) - {""} for loaded in modules])
        own = 2e-3 if slower else 0.5e-3
        return Turns([[{"a": own * (1 + disturbed * n / 8)}, {"a": 1e-3}] for n in range(8)])

    monkeypatch.setattr(network_turns, "take_turns", take_turns)
    store = KernelStore(folder=tmp_path / "kernels")
    assert network_turns.compare_plans(plans, records, store)
    other, plain = taken[0]
    assert rival.task.digest in other and rival.task.digest not in plain and plain >= set(first)
    assert plans.pair().refused == slower
    plans.wanted()
    assert (plans.calls == first) == slower
    assert not network_turns.compare_plans(plans, records, store), "what is known is not asked again"
    assert len(taken) == 1 + disturbed


@pytest.mark.parametrize("failed", [0, 1])
def test_a_measured_plan_whose_module_fails_is_not_made(plans, tmp_path, monkeypatch, failed):
    """Where that of the plan without measuring fails, nothing is known."""
    settle(plans)
    first = plans.calls
    rival = max((w for w in plans.wanted() if w.targets and not w.count), key=lambda w: w.targets[0])
    records = tell(plans, rival.task, min(rival.targets) / 2)
    ended = Turns([], failed, "crash", "SIGSEGV")
    monkeypatch.setattr(network_turns, "take_turns", lambda *args, **how: ended)
    store = KernelStore(folder=tmp_path / "kernels")
    assert network_turns.compare_plans(plans, records, store) == (failed == 0)
    plans.wanted()
    assert (plans.calls == first) == (failed == 0)


def say(records, task, pair, seconds):
    """That the plan took so long, where a millisecond is what it takes without measuring."""
    result = Measurement(seconds, 0.0, 20, config={})
    what = {"task": pair.first, "key": pair.key, "algorithm": PLAN, "config": {PLAN: pair.other}}
    what["network"] = pair.other
    records.add(replace(record_of(task, result, 1, 1), **what, against=1e-3))


def test_tuning_one_task_does_not_promise_as_much_of_another(plans):
    """What is not measured is compared by default configs: it neither gains nor loses by others' tuning."""
    settle(plans)
    wanted = max((w for w in plans.wanted() if w.count), key=lambda w: Space(w.task).size())
    expected = {w.task.digest: w.expected for w in plans.wanted() if w.targets}
    tell(plans, wanted.task, 0.9e-3, unlike_default(wanted.task))
    tuned = {w.task.digest: w.expected for w in plans.wanted() if w.targets}
    same = tuned.keys() & expected.keys() - {wanted.task.digest}
    assert same and {d: tuned[d] for d in same} == {d: expected[d] for d in same}
    assert plans._costs.price_of(wanted.task).default == 1e-3


def drawn(task, seed):
    return Space(task).draw(random.Random(seed))


def test_modules_of_the_plan_in_turns(plans, tmp_path):
    """One with default configs, one with others; what was kept is not built again."""
    wanted = [w for w in plans.wanted() if w.count]
    spaces = {w.task.digest: Space(w.task) for w in wanted}
    default = {digest: space.default() for digest, space in spaces.items()}
    other = {digest: space.draw(random.Random(1)) for digest, space in spaces.items()}
    store = KernelStore(folder=tmp_path / "kernels")
    network = NetworkTurns(plans, store)
    for w in wanted:
        for point in {default[w.task.digest], other[w.task.digest]}:
            network.keep(w.task, point, build_kernel(w.task, Space.config(point), symbol(w.task)))
    kept = set(store.folder.iterdir())
    found = network([default, other, None], 0.0, 60.0)
    assert found.failed is None and len(found.rounds) == LEAST_ROUNDS, found.detail
    for times in (t for each in found.rounds for t in each):
        assert set(spaces) <= set(times) and all(s >= 0 for s in times.values())
    built = set(store.folder.iterdir()) - kept
    assert not plans.differs and not plans.pair().heard
    assert len(built) == len(set(found.rounds[0][0]) - set(spaces) - {""}), "those without questions"


def test_the_plan_without_measuring_has_the_configs_that_records_say(plans, tmp_path, monkeypatch):
    """As it would be compiled; what both plans run is as in the first module."""
    settle(plans)
    rival = max((w for w in plans.wanted() if w.targets and not w.count), key=lambda w: w.targets[0])
    tell(plans, rival.task, min(rival.targets) / 2)
    wanted = [w for w in plans.wanted() if w.predicted_count and Space(w.task).size() > 1]
    left = next(w.task for w in wanted if not w.count)
    both = next(w.task for w in wanted if w.count)
    other = {t.digest: unlike_default(t) for t in (left, both)}
    tell(plans, left, 0.99e-3, other[left.digest])
    plans.wanted()
    assert plans.differs
    built = []

    class Store(KernelStore):
        def build_all(self, tasks, pick):
            built.append({t.digest: tuple(pick(t).answers.items()) for t in tasks.values() if t.asks})
            return super().build_all(tasks, pick)

    def take_turns(make, count, **how):
        for n in range(count):
            make(n)
        return Turns()

    monkeypatch.setattr(network_turns, "take_turns", take_turns)
    variants = [{both.digest: other[both.digest]}, None]
    NetworkTurns(plans, Store(folder=tmp_path / "kernels"))(variants, 0.0, 60.0)
    now, first = built
    assert left.digest not in now and first[left.digest] == other[left.digest]
    assert now[both.digest] == first[both.digest] == other[both.digest]


def test_a_recurrence_has_the_config_that_records_say(tmp_path, monkeypatch):
    """Its task has a loop program, as one without questions has: in turns of modules, and compiled."""
    rng = np.random.default_rng(0)
    weights = {"w": (1, 256, 8), "r": (1, 256, 64)}
    given = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()
    ]
    node = helper.make_node("LSTM", ["x", *weights], ["y"], "lstm", hidden_size=64)
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (3, 1, 8)), ("y", None))
    )
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], given), ir_version=8)
    graph = pipeline.optimise(import_onnx(model), host(), 1, stop_after="fuse")
    records = Records(tmp_path / "r.jsonl", shipped=False)
    plans = NetworkPlans(graph, host(), 1, PlanOptions(), records)
    (task,) = (w.task for w in plans.wanted() if w.count and w.task.program)
    other, picked = unlike_default(task), []

    class Store(KernelStore):
        def build_all(self, tasks, pick, progress=None):
            picked.extend(tuple(pick(t).answers.items()) for t in tasks.values() if t.program)
            return super().build_all(tasks, pick)

    monkeypatch.setattr(network_turns, "take_turns", lambda make, count, **_: make(0) and Turns())
    NetworkTurns(plans, Store(enabled=False))([{task.digest: other}], 0.0, 60.0)
    assert picked == [other]

    tell(plans, task, 1e-3, other)
    monkeypatch.setattr(pipeline, "KernelStore", Store)
    pipeline.compile(model, target=host(), threads=1, records=records.path)
    assert picked == [other, other]


def unlike_default(task):
    return next(p for seed in range(50) if (p := drawn(task, seed)) != Space(task).default())


def test_ablations_have_no_rivals(plans):
    for mode in ("local", "fixed"):
        other = NetworkPlans(plans.graph, host(), 1, replace(plans.options, mode=mode), plans._costs.records)
        assert not any(w.targets for w in other.wanted())
