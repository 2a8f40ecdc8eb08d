"""Tuning for a machine that is not there: counts repeat, wrong results are found, records say it all."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import pytest
from burnish.compiler.ir.expr import ExprBuilder
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target
from burnish.errors import InputError, RunError, ToolError
from burnish.models import zoo
from burnish.op_tuner import simulated
from burnish.op_tuner.isolate import Candidate
from burnish.op_tuner.measure import build
from burnish.op_tuner.pressure import Pressure
from burnish.op_tuner.records import Records
from burnish.op_tuner.simulated import Crashed, Simulated, cycles
from burnish.tuning import tune

from .tasks import Doing, expr_task, leave, op_task

A53 = get_target("cortex-a53")


@pytest.fixture
def measurer(require_tool) -> Iterator[Simulated]:
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        require_tool(tool)
    found = Simulated(A53)
    yield found
    found.close()


def test_counts_repeat_and_small_tiles_take_more(measurer):
    task = op_task(MatMul(), "f32[48,64]", "f32[64,48]", target=A53)
    small = FixedConfig({"tile_m": 1, "tile_n": 4})
    candidates = [Candidate(task, config) for config in (DefaultConfig(), DefaultConfig(), small)]
    results = [m for _, m in measurer(candidates)]
    assert [m.error for m in results] == [None] * 3
    assert [m.config["tile_m"] == 1 for m in results] == [False, False, True]
    assert results[0].seconds == pytest.approx(results[1].seconds, rel=0.01)
    assert results[2].seconds > 1.2 * results[0].seconds
    a_cycle = 1.0 if measurer.pressure else A53.multiply_adds  # LLVM's model starts more of them
    assert results[0].seconds > 48 * 48 * 64 / 4 / a_cycle / simulated.CLOCK
    assert measurer.spans.seconds >= sum(m.running for m in results)


def test_wrong_results_and_dying_candidates_are_failures(measurer, monkeypatch):
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (100,)))
    right = replace(
        expr_task("double", b.finish([b.compute(F32, (100,), lambda i: x[i] + x[i])]), "naive"), target=A53
    )
    c = ExprBuilder()
    y = c.param("x", TensorType(F32, (100,)))
    wrong = replace(right, expr=c.finish([c.compute(F32, (100,), lambda i: y[i] * y[i])]))
    matmul = op_task(MatMul(), "f32[48,64]", "f32[64,48]", target=A53)
    assert [m.error for _, m in measurer([Candidate(matmul, Doing(leave))])] == ["exit"]
    monkeypatch.setattr(simulated, "build", lambda task, asked: build(wrong, asked))
    ((_, found),) = measurer([Candidate(right, DefaultConfig())])
    assert found.error == "wrong" and found.detail and math.isinf(found.seconds)


def test_how_an_emulated_program_ends_is_told_apart(measurer, monkeypatch):
    emulation = measurer.emulation
    ends = {"trap": "__builtin_trap();", "fail": "return 3;"}
    for name, body in ends.items():
        source = measurer.folder / f"{name}.c"
        source.write_text(f"int main(void) {{ {body} }}\n")
        command = ["aarch64-linux-gnu-gcc", "-static", "-o", measurer.folder / name, source]
        subprocess.run(command, check=True)
    with pytest.raises(Crashed, match=r"ended by SIG(TRAP|ILL|ABRT)"):
        emulation.count([measurer.folder / "trap"])
    with pytest.raises(RunError, match="the emulated program failed: 3"):
        emulation.count([measurer.folder / "fail"])
    candidate = Candidate(op_task(MatMul(), "f32[4,4]", "f32[4,4]", target=A53), DefaultConfig())
    errors = [
        (Crashed("x"), "crash"),
        (RunError("x"), "run"),
        (ToolError("x"), "exit"),
        (OSError(28, "full"), "exit"),
    ]
    for error, kind in errors:
        monkeypatch.setattr(simulated.Emulation, "count", Mock(side_effect=error))
        assert measurer.measure(candidate).error == kind


def test_misses_cost_and_arithmetic_takes_the_targets_time():
    counts = Counter(instructions=100, fmla=60)
    plain = cycles(A53, counts)
    assert plain == 60 / A53.multiply_adds + 40 / simulated.ISSUED
    assert cycles(A53, counts + Counter(l2_misses=2)) == plain + 300


def fmla(register: int) -> bytes:
    """fmla vN.4s, v30.4s, v31.4s"""
    return (0x4E20CC00 | 31 << 16 | 30 << 5 | register).to_bytes(4, "little")


def test_llvm_mca_sees_what_waits(require_tool):
    require_tool("llvm-mca")
    found = Pressure.find(A53)
    assert found is not None
    chain, apart = (b"".join(fmla(n) for n in registers) for registers in ([0] * 8, range(8)))
    assert found.cycles(chain) > 3 * found.cycles(apart) > 3 * 7
    assert found.cycles(fmla(0) + bytes.fromhex("ffffffff")) is None
    broken = Pressure(A53, "false", found.disassembler)
    assert broken.cycles(apart) is None and broken.version == ""


def test_blocks_take_what_llvm_mca_finds(monkeypatch):
    a, b, c = (fmla(n).hex() for n in range(3))
    seen = Counter({f"block:40:1:{a}": 9, f"block:44:1:{b}": 9, f"block:48:1:{c}": 8, f"block:4c:1:{a}": 0})
    pressure = Pressure(A53, "", "")
    found = {bytes.fromhex(a + b): 5.0, bytes.fromhex(c): None}
    monkeypatch.setattr(Pressure, "cycles", lambda self, code: found[code])
    counts = seen + Counter(instructions=100, fmla=60)
    assert cycles(A53, counts, pressure) == cycles(A53, counts) + 9 * (5 - 2 / A53.multiply_adds)


def test_a_network_is_tuned_in_simulation(measurer, tmp_path):
    path, model = tmp_path / "r.jsonl", zoo.build("digits")
    found = tune(model, target=A53, trials=12, strategy="random", records=path)
    records = [r for k in found.kernels for r in Records(path, shipped=False).of(k.task)]
    assert len(records) >= 12
    assert {r.hardware.cpu for r in records} == {measurer.hardware.cpu}
    assert measurer.hardware.cpu.startswith("simulated cortex-a53")
    assert ("llvm-mca" in measurer.hardware.cpu) == (measurer.pressure is not None)
    assert found.after <= found.before < math.inf
    assert "simulated" in found.unconfirmed
    again = tune(model, target=A53, trials=1, strategy="random", records=path)
    assert again.before == pytest.approx(found.before)


def test_what_cannot_be_simulated_is_named(monkeypatch, tmp_path):
    with pytest.raises(
        InputError, match="threads is 2: cortex-a53 is simulated here, which takes one thread"
    ):
        tune(zoo.build("digits"), target=A53, threads=2, trials=1, records=tmp_path / "r.jsonl")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match="no qemu-aarch64 that counts"):
        tune(zoo.build("digits"), target=A53, trials=1, records=tmp_path / "r.jsonl")
