"""Kernels measured through the runtime, and outputs checked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir.expr import ExprBuilder, interpret
from burnish.compiler.ir.loops import For, walk
from burnish.compiler.ir.scalar import call
from burnish.compiler.ir.types import F32, I64, Layout, TensorType
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.indexing import Gather
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.reduction import Reduce
from burnish.compiler.ops.sorting import TopK
from burnish.compiler.target import get_target, host
from burnish.errors import InputError
from burnish.op_tuner import check
from burnish.op_tuner import operands as operands_module
from burnish.op_tuner.costs import conversion_task
from burnish.op_tuner.measure import (
    FEW_RUNS,
    PACE,
    Recorder,
    _repeat,
    _Runner,
    build,
    measure,
    measurement_of,
    plan_of,
    run,
)
from burnish.op_tuner.operands import index_bounds, operands

from ..compiled.test_conv_algorithms import Case, items_of
from .tasks import double, expr_task, op_task

QUICK = {"threads": 2, "seconds": 0.001}


@pytest.mark.parametrize("evict", [0, 1 << 20])
def test_a_measurement(evict):
    found = measure(double(), FixedConfig({"lanes": 4}), evict=evict, **QUICK)
    assert found.error is None and found.runs >= 3 and 0 < found.seconds < 0.01
    assert found.config["lanes"] == 4 and "grain" in found.config


def test_the_clock_is_told_whatever_the_kernel_does():
    small, large = (measure(double(size), DefaultConfig(), **QUICK) for size in (64, 1 << 18))
    assert large.seconds > 20 * small.seconds and small.pace < 5 * large.pace < 25 * small.pace
    assert 1e7 < small.pace < 5e9, "a multiply-add takes some cycles of a clock of some GHz"


def test_the_clock_is_told_by_a_chain_that_is_in_the_caches():
    task = double()
    plan = plan_of(
        *(task.target, build(task, Recorder(DefaultConfig())), operands(task)), threads=1, evict=0, paced=True
    )
    own, first, last = plan.steps[-3:]
    assert own.node and first == last and last.kernel == PACE and not last.node


def test_what_a_network_would_leave_in_caches_is_read_before_a_run_the_inputs_last():
    case = Case(16, 32, (14, 14), pads=(1, 1, 1, 1))
    conv = items_of(case, host(), "winograd2")[0].task
    made = build(conv, Recorder(DefaultConfig()))
    assert made.kernel.temps, "what is transformed"

    def read(evict):
        plan = plan_of(conv.target, made, operands(conv), threads=1, evict=evict)
        return [(s.args[0].space, s.args[0].nbytes) for s in plan.steps if s.kernel == "burnish_touch"]

    other, *near = read(1 << 20)
    spaces = [space for space, _ in near]
    temps = list(made.kernel.temps)
    assert other == ("arena", 1 << 20) and list(dict.fromkeys(spaces)) == ["arena", "out", "in"]
    assert [size for _, size in near[: len(temps)]] == temps
    assert len(read(0)) == 1


def test_runs_count_as_at_one_clock_and_the_slowest_do_not_tell():
    runner = object.__new__(_Runner)
    runner.paced, runner.chains = True, [5.0, 1.0, 2.0, 1.0, 1.0]
    assert runner.steady([3.0, 6.0, 3.0, 12.0]).tolist() == [3.0, 3.0, 3.0, 12.0]
    runner.paced = False
    assert runner.steady([3.0, 6.0]).tolist() == [3.0, 6.0]
    found = measurement_of([4.0, 3.0, 3.0, 9.0, 3.0], double().target, {})
    assert found.seconds == 3.0 and found.spread == pytest.approx(1 / 3)


def test_what_is_clearly_slower_is_run_a_few_times():
    def runs(beat):
        return len(_repeat(lambda: 1e-3, 0.02, lambda: beat))

    assert runs(0.5e-3) == FEW_RUNS and runs(0.9e-3) == runs(math.inf) > 15
    runner = object.__new__(_Runner)
    runner.chains = [2e-6]
    now = runner.pace()
    assert runner.slowed(2 * now) == 2.0, "half the usual clock: what takes twice as long is no slower"
    runner.chains = []
    assert runner.slowed(0.0) == runner.slowed(now) == 1.0, "neither is known"


def test_the_clock_of_now_says_what_is_clearly_slower():
    """Asked to beat a thousandth of what it takes, at a clock that is a million times as fast."""
    slow, fast = ({"beat": 1e-9, "usual": pace} for pace in (0.0, 1e15))
    made = build(double(1 << 18), Recorder(DefaultConfig()))
    how = {"threads": 1, "seconds": 0.02}
    few, many = (run(double(1 << 18), made, **how, **asked) for asked in (slow, fast))
    assert few.error is many.error is None and few.runs == FEW_RUNS < many.runs


def test_a_bigger_task_takes_longer():
    small, large = (
        measure(op_task(MatMul(), t, t), DefaultConfig(), **QUICK) for t in ("f32[16,16]", "f32[192,192]")
    )
    assert small.error is large.error is None and large.seconds > 3 * small.seconds


def test_every_layout_and_weights_in_their_space():
    blocked, weights = Layout.channel_blocked(4, 16), Layout((0, 1, 2, 3), ((1, 16), (0, 16)))
    task = op_task(Conv((1, 1), (1, 1, 1, 1), (1, 1)), "f32[1,24,6,5]", "f32[20,24,3,3]")
    assert task.expr is not None
    result = task.expr.outputs[0]
    layouts = (("p0", blocked), ("p1", weights), (result, blocked))
    task = replace(task, layouts=layouts, constants=frozenset({"p1"}), algorithm="naive")
    given = operands(task)
    assert given.weights == {1} and given.arrays[1].shape == weights.physical_shape((20, 24, 3, 3))
    assert measure(task, DefaultConfig(), evict=1 << 20, **QUICK).error is None


def test_a_program_whose_indices_are_checked():
    assert measure(op_task(Gather(axis=0), "f32[5,3]", "i64[7]"), DefaultConfig(), **QUICK).error is None
    assert measure(op_task(TopK(1, 2), "f32[4,9]"), DefaultConfig(), **QUICK).error is None


def test_index_bounds():
    b = ExprBuilder()
    x, i = b.param("x", TensorType(F32, (5, 3))), b.param("i", TensorType(I64, (7,)))
    b.param("n", TensorType(I64, (7,)))
    y = b.compute(F32, (7, 3), lambda r, c: x[i[r], c])
    assert index_bounds(b.finish([y])) == {"i": 5}


def conv_task():
    return op_task(Conv((1, 1), (0, 0, 0, 0), (1, 1)), "f32[1,8,12,12]", "f32[40,8,3,3]", algorithm="naive")


def test_the_sample_agrees_with_the_whole_expression(monkeypatch):
    monkeypatch.setattr(check, "WORK", 1 << 13)
    monkeypatch.setattr(check, "_CHUNK", 1 << 10)
    task = conv_task()
    assert task.expr is not None
    arrays = operands(task, False).arrays
    ((at, want),) = check.sample(task.expr, arrays)
    whole = interpret(task.expr, arrays)[0]
    assert 64 <= at.size < whole.size and {0, whole.size - 1} <= set(at.tolist())
    np.testing.assert_allclose(want, whole.reshape(-1)[at], rtol=1e-5)


def test_a_stage_that_others_read_is_sampled_too():
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (6, 50)))
    top = b.reduce("max", F32, (6,), (50,), lambda i, k: x[i, k])
    total = b.reduce("sum", F32, (6,), (50,), lambda i, k: x[i, k] - top[i])
    which = b.reduce("argmax_last", I64, (6,), (50,), lambda i, k: x[i, k] - total[i])
    y = b.compute(F32, (6, 50), lambda i, k: (x[i, k] - top[i]) / total[i])
    expr = b.finish([y, which])
    arrays = [np.random.default_rng(0).random((6, 50), np.float32)]
    for (at, want), whole in zip(check.sample(expr, arrays), interpret(expr, arrays)):
        np.testing.assert_allclose(want, whole.reshape(-1)[at], rtol=1e-4)


def expected(want, relative=1e-4, few=False):
    flat = np.asarray(want).reshape(-1)
    return check.Expected(np.arange(flat.size), flat, relative, few)


def test_what_is_wrong_is_told():
    want = np.ones((2, 3), np.float32)
    assert expected(want).error(want * np.float32(1.00001)) == ""
    assert "at [0, 0] 1.5, not 1.0" in expected(want).error(want * np.float32(1.5))
    sampled = check.Expected(np.arange(2), np.ones(2, np.float32), 1e-4, False)
    unwritten = want.copy()
    unwritten[1, 2] = np.nan
    assert "not written" in sampled.error(unwritten)
    assert expected([np.nan, np.inf]).error(np.array([np.nan, np.inf])) == ""
    assert expected([np.nan, np.inf]).error(np.array([np.nan, -np.inf])) != ""
    ints = np.arange(200)
    off = ints.copy()
    off[7] += 1
    assert expected(ints, 0.0).error(off) != "" and expected(ints, 0.0, few=True).error(off) == ""
    assert expected(ints, 0.0, few=True).error(ints + 1) != ""


def test_operands_that_would_give_nan_are_drawn_again():
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (64,)))
    from_roots = b.finish([b.compute(F32, (64,), lambda i: call("sqrt", x[i]))])
    given = operands(expr_task("roots", from_roots))
    assert given.expected is not None and np.isfinite(given.expected[0].want).all()


def test_a_wrong_program_is_found():
    task = op_task(TopK(1, 2), "f32[4,9]")
    other = op_task(TopK(1, 2, largest=False), "f32[4,9]")
    wide = operands(op_task(TopK(1, 1), "f32[200,9]")).expected[1]
    one_off = wide.want.copy()
    one_off[100] += 1
    assert not wide.error(wide.want) and wide.error(one_off)
    wrong = measure(replace(task, program=other.program), DefaultConfig(), **QUICK)
    assert wrong.error == "wrong" and "elements; at [" in wrong.detail
    unchecked = measure(replace(task, program=other.program), DefaultConfig(), check=False, **QUICK)
    assert unchecked.error is None


def test_a_rejected_config_and_one_that_does_not_build():
    assert measure(double(), FixedConfig({"lanes": 3}), **QUICK).error == "rejected"
    empty = replace(op_task(TopK(1, 2), "f32[4,9]"), program=None)
    assert measure(empty, DefaultConfig(), **QUICK).error == "build"


def test_another_machine_is_refused():
    far = replace(get_target("x86-64"), name="far", features=("sve2",))
    with pytest.raises(InputError, match="lacks sve2"):
        measure(replace(double(), target=far), DefaultConfig(), **QUICK)


def test_sums_of_the_naive_template_race_with_nobody():
    task = op_task(Reduce("sum_square", (0, 2), True), "f32[2,3,5]", algorithm="naive")
    for lp in (st for st in walk(scheduled(task, DefaultConfig()).body) if isinstance(st, For)):
        assert lp.kind != "parallel" or not lp.var.startswith("k")
    assert [measure(task, DefaultConfig(), **QUICK).error for _ in range(5)] == [None] * 5


def test_empty_tensors():
    assert measure(double(0), DefaultConfig(), **QUICK).error is None


def test_padding_of_blocks_must_be_finite():
    """Whatever it is: readers multiply it by zero."""
    type, blocked = TensorType.parse("f32[1,20,3,3]"), Layout.channel_blocked(4, 16)
    task = conversion_task(type, None, blocked, host(), 1)
    given = operands(task)
    right = blocked.pack(given.arrays[0].reshape(type.dims))
    assert right.shape == (1, 2, 3, 3, 16) and given.error([right]) == ""
    right[0, 1, :, :, 4:] = 7.0
    assert given.error([right]) == ""
    right[0, 1, 2, 2, 15] = np.nan
    assert "padding of a block" in given.error([right])
    assert measure(task, DefaultConfig(), **QUICK).error is None


def test_the_latest_operands_are_kept(monkeypatch):
    """As many as there is room for, one at least."""
    tasks = [double(size) for size in (1000, 1001, 1002)]
    room = [3 * operands(task).nbytes for task in tasks]
    assert operands(tasks[0]) is operands(double(1000)), "tasks are compared, not objects"
    monkeypatch.setattr(operands_module, "KEPT", room[0] * 2 // 3 + 100)
    first, second = operands(tasks[0]), operands(tasks[1])
    assert operands(tasks[0]) is first
    operands(tasks[2])
    assert operands(tasks[0]) is first and operands(tasks[1]) is not second, "the oldest goes"
    monkeypatch.setattr(operands_module, "KEPT", 0)
    assert operands(tasks[2]) is operands(tasks[2])
