"""Instructions under an emulator: what the engine makes of contestants, and what is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import burnish
import numpy as np
import pytest
from burnish.commands import bench_counts, peers
from burnish.commands.bench_counts import CountGroup, CountResult, CountRow, count
from burnish.commands.bench_counts_report import report, to_json
from burnish.commands.peers.emulated import EmulatedProgram
from burnish.compiler.target import get_target
from burnish.errors import InputError, ToolError
from burnish.models import zoo

from .networks import convolution, relu

TARGET = get_target("cortex-a72")
OWN = partial(burnish.compile, target=TARGET)


@pytest.fixture(scope="module")
def counting(require_tool) -> None:
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        require_tool(tool)


class Again(peers.EmulatedBurnish):
    """Burnish as a peer."""

    subject = False


class Wrong(Again):
    def prepare(self, network, inputs, folder):
        return super().prepare(network, {name: array + 1 for name, array in inputs.items()}, folder)


class Refusing(Again):
    def prepare(self, network, inputs, folder):
        raise ToolError("no such operator")


class Absent(Again):
    def version(self):
        raise ToolError("not installed: no absent in /site")


def test_contestants_are_counted_and_failures_are_rows(counting, monkeypatch):
    monkeypatch.setattr("burnish.commands.bench_counts.ENOUGH", 0.0)
    kinds = (Again, Wrong, Refusing, Absent)
    contestants = [peers.EmulatedBurnish(OWN), *(kind(OWN, kind.__name__) for kind in kinds)]
    result = count([("convolution", convolution())], contestants, TARGET, runs=2)
    own, again, wrong, refusing, absent = result.groups[0].rows
    assert result.groups[0].checked and own.error <= 1e-4 and own.algorithm
    assert 0 < own.counts["fmla"] < own.instructions < own.process
    assert again.instructions == own.instructions
    assert result.groups[0].best_peer is again and result.groups[0].ratio(own) == 1
    assert "wrong: differs by" in wrong.reason and wrong.instructions is None
    assert refusing.reason == "no such operator"
    assert absent.reason == "not installed: no absent in /site"


class Counted:
    """In place of an emulator: each run is a million instructions, and so is what starting varies by."""

    def __init__(self, target, folder, caches):
        self.folder, self.starts = folder, iter([9, 8, 9, 8])

    def version(self):
        return "made up"

    def count(self, command, options):
        *_, runs = command
        return dict.fromkeys(bench_counts.KINDS, 1e6 * (next(self.starts) + (runs - 1) * command[0]))


@dataclass
class MadeUp(peers.EmulatedPeer):
    name: str
    millions: float
    given: dict
    subject: bool = False

    def prepare(self, network, inputs, folder):
        return EmulatedProgram((self.millions,), lambda: self.given)


def test_integers_are_exact_and_what_the_start_hides_is_no_count(monkeypatch):
    monkeypatch.setattr(bench_counts, "Emulation", Counted)
    monkeypatch.setattr(bench_counts, "reference_outputs", lambda *_: {"y": np.array([20000])})
    monkeypatch.setattr(bench_counts, "defined_outputs", lambda *_: {"y": np.array([30000])})
    right, judged, wrong = ({"y": np.array([n])} for n in (20000, 30000, 20001))
    kept = []

    def counted(*contestants):
        return count([("relu", relu())], contestants, TARGET, runs=7, keep=kept.append).groups[0].rows

    own, other = counted(MadeUp("burnish", 2.0, right, True), MadeUp("judged", 1.0, judged))
    assert own.reason is None and own.instructions == pytest.approx((7 * 2e6 - 1e6) / 7)
    assert other.reason is None and other.counts["instructions"] > 9e5  # 2e9 / own: more runs
    assert kept[0].groups[0].rows == (own, other) and not kept[0].complete
    idle, far = counted(MadeUp("idle", 0.0, right), MadeUp("wrong", 1.0, wrong))
    assert idle.reason == "7 runs are too few to tell from a process's start" and not idle.counts
    assert far.reason == "wrong: output 'y', int64, is not equal"


def test_a_pointwise_convolution_is_mostly_products(counting):
    result = count([("c3", zoo.build("c3"))], [peers.EmulatedBurnish(OWN)], TARGET, runs=1)
    (row,) = result.groups[0].rows
    assert row.counts["fmla"] == pytest.approx(56 * 56 * 64 * 64 / 4, rel=0.01)
    assert row.instructions < 1.5 * row.counts["fmla"]
    assert result.groups[0].ratio(row) is None


def test_without_an_emulator(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match="there is no qemu-aarch64 that counts; install qemu-user"):
        count([("relu", relu())], [], TARGET)


def test_a_root_file_system_is_needed_for_peers(monkeypatch, tmp_path):
    monkeypatch.delenv("BURNISH_EMULATOR_ROOT", raising=False)
    with pytest.raises(InputError, match="give --root or BURNISH_EMULATOR_ROOT"):
        peers.System.find(None, TARGET)
    monkeypatch.setenv("BURNISH_EMULATOR_ROOT", str(tmp_path / "none"))
    with pytest.raises(InputError, match="none: expected a root file system of aarch64"):
        peers.System.find(None, TARGET)
    (tmp_path / "usr").mkdir()
    system = peers.System.find(tmp_path, TARGET)
    for peer in peers.find_emulated(["all"], system):
        with pytest.raises(ToolError, match=r"not installed: no (onnx|ai-edge|libarm_compute)"):
            peer.version()
    with pytest.raises(ToolError, match=r"not installed: no usr/bin/python3"):
        system.python  # noqa: B018
    with pytest.raises(InputError, match="no peer 'ncnn' under an emulator: choose from onnxruntime, litert"):
        peers.find_emulated(["ncnn"], system)
    (tmp_path / "site" / "ai_edge_litert-2.3.0.dist-info").mkdir(parents=True)
    assert system.version("ai-edge-litert") == "2.3.0"


@pytest.fixture
def result() -> CountResult:
    def row(name: str, millions: float, subject: bool = False) -> CountRow:
        kinds = {"instructions": 1e6 * millions, "fmla": 2.5e6, "vector_loads": 1e6, "vector_stores": 2e5}
        return CountRow(name, "1.0", subject, kinds, process=2_000_000_000, error=np.inf)

    failed = CountRow("litert", "1.0", reason="no | such operator")
    c2 = CountGroup("c2", True, (row("burnish", 4, True), row("onnxruntime", 8), row("other", 9), failed))
    c3 = CountGroup("c3", False, (row("burnish", 4, True), row("onnxruntime", 3)))
    c4 = CountGroup("c4", True, (row("burnish", 4, True), failed))
    return CountResult("2026-11-22T00:00:00+00:00", "cortex-a72", "qemu 7.2", 3, 0, (c2, c3, c4))


def test_the_report_says_that_there_are_no_times(result):
    text = report(result).to_markdown()
    assert "EMULATED cortex-a72, 1 thread: instructions, no times" in text
    assert "**c2, instructions on an emulated cortex-a72**" in text
    assert "c3, instructions on an emulated cortex-a72, outputs not checked" in text
    assert "| burnish | 4 M | 2.00 | 2.5 M | 1 M | 0.2 M | 2000 M |  | fewer |" in text
    assert "| onnxruntime | 8 M | 1.00 |" in text and "| other | 9 M | 0.89 |" in text
    assert "no \\| such operator" in text
    assert "burnish executes fewer instructions than every peer: c2\n" in text
    assert "burnish executes more instructions than the best peer: c3\n" in text
    assert "burnish has no peer to compare with: c4\n" in text


def test_json_is_versioned_and_finite(result):
    document = json.loads(to_json(result))
    assert (document["format"], document["target"]) == ("burnish-counts-1", "cortex-a72")
    first = document["groups"][0]["rows"][0]
    assert first["counts"]["instructions"] == 4e6 and first["error"] is None and first["verdict"] == "fewer"


def test_arm_compute_takes_a_single_convolution(tmp_path):
    peer = peers.ArmCompute(peers.System(Path("/none")), "nhwc")
    with pytest.raises(burnish.BurnishError, match="not a single convolution"):
        peer.prepare(peers.Network("relu", relu()), {"x": np.zeros((1, 3, 4, 5), np.float32)}, tmp_path)
