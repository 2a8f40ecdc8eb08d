"""The engine, with contestants whose times and outputs are made up."""

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from burnish.commands import bench as engine
from burnish.commands import bench_report
from burnish.commands.bench import bench, in_turns, settle
from burnish.commands.outputs import relative_error
from burnish.commands.peers import OnnxRuntime, Peer, Runner
from burnish.commands.peers.base import TuningTime
from burnish.errors import InputError, ToolError

from .networks import convolution, relu


@pytest.fixture(autouse=True)
def own_cores(monkeypatch):
    """Nothing is measured twice because another test runs on the same core."""
    monkeypatch.setattr("burnish.op_tuner.own_cores.crowding", lambda threads: 1.0)


class FakeRunner(Runner):
    def __init__(self, peer):
        self.peer = peer
        self.rounds = 0

    def bind(self, inputs):
        return lambda: np.maximum(inputs["x"], 0) + self.peer.wrong_by

    def outputs(self, result):
        return {"y": result}

    def time(self, inputs, repeats):
        self.peer.log.append((self.peer.name, float(inputs["x"].flat[0])))
        self.rounds += 1
        slow = 1.1 if inputs["x"].flat[0] > 0 else 1.0  # some rounds are slow, for everybody
        if self.rounds > self.peer.survives:
            raise RuntimeError("it\nbroke")
        return self.peer.milliseconds * 1e-3 * repeats * slow

    def close(self):
        self.peer.closed += 1


@dataclass(eq=False)
class FakePeer(Peer):
    name: str
    milliseconds: float = 1.0
    subject: bool = False
    precision: str = "f32"
    wrong_by: float = 0.0
    survives: int = 10**9
    missing: str | None = None
    refuses: Exception | None = None
    log: list = field(default_factory=list)
    closed: int = 0
    tolerance = 1e-4

    def available(self):
        return self.missing

    def version(self):
        return "1.2.3"

    def prepare(self, network, threads):
        if self.refuses is not None:
            raise self.refuses
        return FakeRunner(self)


def compare(*contestants, rounds=5, threads=(1,)):
    return bench([("relu", relu())], contestants, threads=threads, rounds=rounds, min_seconds=0.01)


def rows(result):
    return {row.contestant: row for row in result.groups[0].rows}


def test_speed_is_against_the_fastest_right_f32_peer():
    result = compare(
        FakePeer("burnish", 1.0, subject=True),
        FakePeer("slow", 4.0),
        FakePeer("fast", 2.0),
        FakePeer("faster-bf16", 0.5, precision="bf16"),
        FakePeer("fastest-wrong", 0.1, wrong_by=0.5),
    )
    found = rows(result)
    assert result.groups[0].fastest_peer == "fast"
    assert result.groups[0].checked
    assert found["burnish"].speed.middle == pytest.approx(2.0)
    assert found["slow"].speed.middle == pytest.approx(0.5)
    assert found["fast"].speed.middle == 1.0
    assert found["faster-bf16"].speed.middle == pytest.approx(4.0)
    assert len(found["burnish"].seconds) == 5


def test_what_tuning_took_is_kept():
    tuned = FakePeer("burnish", subject=True)
    tuned.tuning = {("relu", 1): TuningTime(9.0, overhead=2.0)}
    document = json.loads(bench_report.to_json(compare(tuned, FakePeer("peer"))))
    own, peer = document["groups"][0]["rows"]
    assert (own["tuning_seconds"], own["tuning_overhead_seconds"]) == (9.0, 2.0)
    assert peer["tuning_seconds"] is peer["tuning_overhead_seconds"] is None


def test_a_subject_is_compared_with_peers_that_round_no_more():
    result = compare(
        FakePeer("burnish", 1.0, subject=True),
        FakePeer("burnish-tf32", 0.5, subject=True, precision="tf32"),
        FakePeer("burnish-f16", 0.25, subject=True, precision="f16"),
        FakePeer("peer", 2.0),
        FakePeer("slow-tf32", 1.5, precision="tf32"),
        FakePeer("peer-tf32", 1.0, precision="tf32"),
    )
    found = rows(result)
    assert {name: round(row.speed.middle, 6) for name, row in found.items()} == {
        "burnish": 2.0,
        "burnish-tf32": 2.0,
        "burnish-f16": 4.0,
        "peer": 1.0,
        "slow-tf32": pytest.approx(2 / 1.5, abs=1e-6),
        "peer-tf32": 2.0,
    }
    assert [found[f"burnish{kind}"].rivals for kind in ("", "-tf32", "-f16")] == ["f32", "tf32", "tf32"]
    said = bench_report.report(result).to_text()
    assert "burnish is faster than every f32 peer: relu" in said
    assert "burnish-tf32 is faster than every tf32 peer: relu" in said
    subject = FakePeer("burnish-tf32", 0.5, subject=True, precision="tf32")
    others = (
        FakePeer("peer", 0.8),
        FakePeer("peer-tf32", 1.0, precision="tf32"),
        FakePeer("f16", 0.1, precision="f16"),
    )
    found = rows(compare(subject, *others))["burnish-tf32"]
    assert (found.rivals, round(found.speed.middle, 6)) == ("f32", 1.6)


def test_ratios_are_paired_within_rounds():
    """Both sides slow down together in some rounds: the times vary by 10 %, the ratio not at all."""
    found = rows(compare(FakePeer("burnish", 1.0, subject=True), FakePeer("peer", 2.0)))["burnish"]
    assert found.median_seconds.high / found.median_seconds.low == pytest.approx(1.1)
    assert found.speed.low == pytest.approx(found.speed.high)


@pytest.mark.parametrize(("cores", "shared"), [(1, True), (2, False)])
def test_it_says_when_cores_were_shared(monkeypatch, cores, shared):
    """Where there is a thread for each core: else nobody knows on which ones they run."""
    found = itertools.chain([1.0] * 4, itertools.repeat(2.0))
    monkeypatch.setattr("burnish.op_tuner.own_cores.crowding", lambda threads: next(found))
    monkeypatch.setattr(engine, "allowed_cpus", lambda: set(range(cores)))
    group = compare(FakePeer("burnish", subject=True), FakePeer("peer")).groups[0]
    assert (group.shared > 0) == shared and all(len(row.seconds) == 5 for row in group.rows)


def test_a_wrong_contestant_is_a_row_that_says_so():
    found = rows(compare(FakePeer("burnish", subject=True, wrong_by=0.5), FakePeer("peer")))["burnish"]
    assert "wrong: differs by" in found.reason
    assert found.median_seconds is None and found.speed is None and not found.seconds
    assert found.error > 1e-4


def test_definitions_decide_where_onnxruntime_differs(monkeypatch):
    monkeypatch.setattr(
        engine, "reference_outputs", lambda network, inputs: {"y": np.maximum(inputs["x"], 0) + 0.1}
    )
    found = rows(
        compare(
            FakePeer("burnish", subject=True), FakePeer("other", wrong_by=0.1), FakePeer("no", wrong_by=9)
        )
    )
    assert found["burnish"].reason is None and found["other"].reason is None
    assert "wrong: differs by" in found["no"].reason


def test_integers_are_exact(monkeypatch):
    """An index beside the right one is as near as floats may be."""

    def index(network, inputs, more=0):
        return {"y": np.full(inputs["x"].shape, 20000 + more)}

    monkeypatch.setattr(engine, "reference_outputs", index)
    monkeypatch.setattr(engine, "defined_outputs", index)
    monkeypatch.setattr(
        FakeRunner, "outputs", lambda self, result: index(None, {"x": result}, self.peer.more)
    )
    right, wrong = FakePeer("burnish", subject=True), FakePeer("wrong")
    right.more, wrong.more = 0, 1
    found = rows(compare(right, wrong))
    assert found["burnish"].reason is None
    assert found["wrong"].reason == "wrong: output 'y', int64, is not equal"


def test_failures_are_rows_and_the_others_go_on():
    result = compare(
        FakePeer("absent", missing="not installed: pip install absent"),
        FakePeer("refuses", refuses=ToolError("no such operator")),
        FakePeer("raises", refuses=ValueError("bad\nmodel")),
        FakePeer("breaks", survives=4),
        FakePeer("works"),
    )
    found = rows(result)
    assert found["absent"].reason == "not installed: pip install absent"
    assert found["refuses"].reason == "no such operator"
    assert found["raises"].reason == "ValueError: bad model"
    assert found["breaks"].reason == "RuntimeError: it broke" and not found["breaks"].seconds
    assert found["works"].reason is None and len(found["works"].seconds) == 5
    assert "absent" not in result.versions and result.versions["works"] == "1.2.3"


def test_every_round_has_fresh_inputs_and_an_order():
    log: list[tuple[str, float]] = []
    contestants = [FakePeer(name, log=log) for name in "abc"]
    compare(*contestants, rounds=3)
    timed = log[-9:]
    orders = itertools.islice(in_turns(3, seed=0), 3)
    assert [name for name, _ in timed] == ["abc"[n] for order in orders for n in order]
    by_round = [{value for _, value in timed[start : start + 3]} for start in (0, 3, 6)]
    assert all(len(values) == 1 for values in by_round)
    assert len(set.union(*by_round)) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_in_turns_none_follows_itself_or_always_the_same_one(count):
    orders = list(itertools.islice(in_turns(count, seed=1), 200))
    assert all(sorted(order) == list(range(count)) for order in orders)
    follows = Counter(itertools.pairwise(itertools.chain(*orders)))
    if count > 1:
        assert follows.keys() == set(itertools.permutations(range(count), 2))
        assert max(follows.values()) < 2.5 * min(follows.values())


def test_networks_of_16_bits_may_differ_by_what_they_round(monkeypatch):
    half = relu()
    for info in (*half.graph.input, *half.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    monkeypatch.setattr(engine, "random_inputs", lambda model, seed: {"x": np.ones((1, 3, 4, 5), np.float16)})
    for model, error, right in ((half, 5e-3, True), (half, 0.05, False), (relu(), 5e-3, False)):
        peer = FakePeer("burnish", subject=True, wrong_by=error)
        result = bench([("relu", model)], [peer], threads=(1,), rounds=1, min_seconds=0.01)
        assert (rows(result)["burnish"].reason is None) == right


def test_every_runner_is_closed_once():
    contestants = [FakePeer("works"), FakePeer("breaks", survives=4), FakePeer("wrong", wrong_by=1.0)]
    compare(*contestants, threads=(1, 2))
    assert [peer.closed for peer in contestants] == [2, 2, 2]


def test_without_a_peer_there_is_no_speed():
    result = compare(FakePeer("burnish", subject=True))
    assert result.groups[0].fastest_peer is None
    assert rows(result)["burnish"].speed is None
    assert rows(result)["burnish"].median_seconds is not None


def test_networks_times_threads():
    result = bench(
        [("a", relu()), ("b", relu((2, 3)))], [FakePeer("p")], threads=(1, 2), rounds=1, min_seconds=0.01
    )
    assert [(group.network, group.threads) for group in result.groups] == [
        ("a", 1), ("a", 2), ("b", 1), ("b", 2),
    ]  # fmt: skip
    assert result.limits.gflops.keys() == {1, 2}


def test_what_there_is_is_kept_behind_each_network():
    kept = []
    networks, options = [("a", relu()), ("b", relu((2, 3)))], {"threads": (1,), "rounds": 1}
    result = bench(networks, [FakePeer("p")], **options, min_seconds=0.01, keep=kept.append)
    assert [len(found.groups) for found in kept] == [1, 2] and kept[1].groups == result.groups
    assert [found.complete for found in (*kept, result)] == [False, False, True]


def test_a_real_library_against_itself():
    class Again(OnnxRuntime):
        name = "again"
        subject = True

    result = bench([("convolution", convolution())], [Again(), OnnxRuntime()], threads=(1,), rounds=5,
                   min_seconds=0.01)  # fmt: skip
    found = rows(result)["again"]
    assert found.reason is None and found.error < 1e-6
    assert found.speed.low <= found.speed.middle <= found.speed.high
    assert result.groups[0].flops == 2 * (4 * 6 * 7) * 27
    assert 0 < result.share_of_peak(result.groups[0], found) < 1


@pytest.mark.parametrize("arguments", [{"rounds": 0}, {"threads": (0,)}, {"threads": ()}])
def test_nonsense_is_refused(arguments):
    with pytest.raises(InputError, match="at least 1 round and 1 thread"):
        bench([("relu", relu())], [FakePeer("p")], **{"rounds": 1, "threads": (1,), **arguments})


def test_relative_error():
    expected = {"y": np.array([1.0, -4.0, np.nan, np.inf], np.float32)}
    assert relative_error({"y": expected["y"].copy()}, expected) == 0
    assert relative_error({"y": np.array([1.0, -3.0, np.nan, np.inf], np.float32)}, expected) == 0.25
    assert relative_error({"y": np.array([1.0, np.nan, np.nan, np.inf], np.float32)}, expected) == float(
        "inf"
    )
    assert relative_error({"y": np.array([1.0, -4.0, 0.0, np.inf], np.float32)}, expected) == float("inf")
    assert relative_error({"y": np.zeros((2, 2), np.float32)}, expected) == float("inf")
    assert relative_error({}, expected) == float("inf")
    assert relative_error({"y": np.zeros(0)}, {"y": np.zeros(0)}) == 0
    index, near = {"y": np.array([20000])}, {"y": np.array([20001])}
    assert relative_error(near, index) == 5e-5 and relative_error(near, index, exact=True) == float("inf")
    assert relative_error(index, index, exact=True) == 0


def test_settle_waits_for_spinning_threads():
    session = OnnxRuntime().prepare(engine.Network("convolution", convolution()), 2)
    session.time({"x": np.ones((1, 3, 6, 7), np.float32)}, 200)
    settle()
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.2  # a thread that spins would use all of it
