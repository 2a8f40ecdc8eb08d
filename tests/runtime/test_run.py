"""Running plans from memory: threads, gangs, bindings, errors."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from burnish.compiler.ir.plan import BufferRef, Copy, KernelCall, Plan, PlanIO, encode
from burnish.compiler.ir.types import BOOL, DTYPES, F16, F32, I32, I64, TensorType
from burnish.errors import BurnishError, InputError, InternalError, NoMemoryError, RunError
from burnish.runtime.binding import Context, Pool, module_from_memory

from ..compiled.forked import run_forked
from .conftest import NBYTES, ROWS, WEIGHTS, chain_meaning, chain_plan, prepared_plan, some_rows

IN, OUT = BufferRef.input, BufferRef.output


@pytest.mark.parametrize("tasks", [1, 2, 3, 64])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chain(kernels, threads, tasks):
    module = kernels.module(chain_plan(tasks=tasks), WEIGHTS)
    for seed in range(20):
        x = some_rows(seed)
        y = module.run({"x": x}, threads)["y"]
        np.testing.assert_array_equal(y[:tasks], chain_meaning(x)[:tasks])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 64, 1000])
def test_every_task_runs_once(kernels, threads, tasks):
    counts = TensorType(I64, (tasks,))
    step = KernelCall("tally", "T", (OUT(0, counts.nbytes),), (0,), tasks)
    module = kernels.module(Plan("t", "", (), (), (PlanIO("y", counts),), 0, 0, (step,) * 3))
    context = module.context(threads)
    for _ in range(10):
        context.run()
    np.testing.assert_array_equal(context.output("y"), np.full(tasks, 30))


def gang_plan() -> Plan:
    vector = TensorType(I32, (64,))
    args = IN(0, 256), OUT(0, 256), BufferRef.arena(0, 512)
    plain = KernelCall("tally", "T", (BufferRef.arena(512, 64 * 8),), (0,), 64)
    step = KernelCall("rotate", "LSTM_0", args, (1, 2), 64, gang=True)
    return Plan(
        "g", "", (), (PlanIO("x", vector),), (PlanIO("y", vector),), 1024, 0, (plain, step, plain, step)
    )


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_gang_workers_wait_for_each_other(kernels, threads):
    module = kernels.module(gang_plan())
    x = np.arange(64, dtype=np.int32)
    for _ in range(30):
        np.testing.assert_array_equal(module.run({"x": x}, threads)["y"], np.roll(x, -10) + 10)


def test_call_carries_next_weights_and_aligned_scratch(kernels):
    facts = TensorType(I64, (4,))
    inspect = KernelCall("inspect", "I", (OUT(0, 32),), (0,), scratch=8)
    other = KernelCall("multiply", "M", (IN(0, 64), BufferRef.weights(64, 128), BufferRef.arena(0, 64)), (2,))
    io = (PlanIO("x", TensorType(F32, (16,))),), (PlanIO("y", facts),)
    module = kernels.module(
        Plan("i", "", (), *io, 64, 192, (inspect, other)), bytes(64) + b"\x2a" + bytes(127)
    )
    assert module.run({"x": np.zeros(16, np.float32)})["y"].tolist() == [128, 42, 0, 1]


def test_contexts_run_in_parallel(kernels):
    module = kernels.module(chain_plan(), WEIGHTS)
    pool = Pool(2)
    contexts = [module.context(1), module.context(2), module.context(2), module.context(pool=pool)]
    contexts.append(module.context(pool=pool))
    wrong: list[int] = []

    def work(number: int) -> None:
        x = some_rows(number)
        contexts[number].bind_input("x", x)
        for _ in range(200):
            contexts[number].run()
            if not np.array_equal(contexts[number].output("y"), chain_meaning(x)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(contexts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert contexts[3].threads == 2
    assert not wrong


def test_modules_share_a_pool(kernels):
    pool = Pool(2)
    chain, gang = kernels.module(chain_plan(), WEIGHTS), kernels.module(gang_plan())
    a, b = chain.context(pool=pool), gang.context(pool=pool)
    del chain, gang, pool
    x = some_rows()
    a.bind_input("x", x)
    b.bind_input("x", np.arange(64, dtype=np.int32))
    for _ in range(20):
        a.run()
        b.run()
    np.testing.assert_array_equal(a.output("y"), chain_meaning(x))
    np.testing.assert_array_equal(b.output("y"), np.roll(np.arange(64), -10) + 10)


def one_kernel(name: str, tasks: int) -> Plan:
    vector = TensorType(I32, (64,))
    step = KernelCall(name, "K", (OUT(0, 256),), (0,), tasks)
    return Plan("one", "", (), (PlanIO("x", vector),), (PlanIO("y", vector),), 0, 0, (step,))


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_of_one_pool_take_turns(kernels, threads):
    """Also where it has no thread to share."""
    module, pool = kernels.module(one_kernel("by_turns", 1)), Pool(threads)
    contexts = [module.context(pool=pool) for _ in range(2)]
    failed: list[RunError] = []

    def work(context: Context) -> None:
        try:
            for _ in range(50):
                context.run()
        except RunError as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(c,)) for c in contexts]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are not kept to CPUs here")
def test_where_there_is_one_cpu_steps_are_not_cut(kernels):
    module = kernels.module(one_kernel("whole", 64))

    def check(item: None) -> str | None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        context = module.context(0)
        context.run()
        return None if context.threads == 1 else f"{context.threads} threads"

    assert run_forked([None], check) == [None]


def test_a_forked_child_runs_alone(kernels):
    context = kernels.module(gang_plan()).context(2)
    x = np.arange(64, dtype=np.int32)
    context.bind_input("x", x)
    context.run()

    def check(item: None) -> str | None:
        context.run()
        return None if np.array_equal(context.output("y"), np.roll(x, -10) + 10) else "wrong"

    assert run_forked([None], check) == [None]


def gather_plan() -> Plan:
    index = TensorType(I64, (64,))
    args = IN(0, NBYTES), IN(1, 512), BufferRef.arena(0, NBYTES)
    steps = (
        KernelCall("gather", "Gather_7 (embedding)", args, (2,), 64),
        KernelCall("add_one", "Add_8", (BufferRef.arena(0, NBYTES), OUT(0, NBYTES)), (1,), 64),
    )
    io = (PlanIO("x", ROWS), PlanIO("index", index)), (PlanIO("y", ROWS),)
    return Plan("gather", "", (), *io, NBYTES, 0, steps)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_error_names_the_node(kernels, threads):
    module = kernels.module(gather_plan())
    x, index = some_rows(), np.arange(64, dtype=np.int64)[::-1].copy()
    np.testing.assert_array_equal(module.run({"x": x, "index": index}, threads)["y"], x[::-1] + 1)
    index[40] = 64
    with pytest.raises(RunError, match=r"node Gather_7 \(embedding\): an index is out of range \(code 1"):
        module.run({"x": x, "index": index}, threads)
    index[40] = 0
    np.testing.assert_array_equal(module.run({"x": x, "index": index}, threads)["y"], x[index] + 1)


def test_what_went_wrong_is_said_beside_a_long_name(kernels):
    """Those of fused operators hold the names of all."""
    plan = gather_plan()
    first = replace(plan.steps[0], node="+".join(f"/encoder/layer.{n}/attention/MatMul" for n in range(30)))
    module = kernels.module(replace(plan, steps=(first, *plan.steps[1:])))
    with pytest.raises(
        RunError, match=r"^node /encoder.*: an index is out of range \(code 1, kernel gather\)$"
    ):
        module.run({"x": some_rows(), "index": np.full(64, 64)})


def test_messages_are_one_line_whatever_a_name_holds(kernels):
    plan = gather_plan()
    x, index = plan.inputs
    first = replace(plan.steps[0], node="Gather\r\n7")
    named = replace(plan, inputs=(replace(x, name="x\ny"), index), steps=(first, *plan.steps[1:]))
    module = kernels.module(named)
    with pytest.raises(InputError) as missing:
        module.run({})
    with pytest.raises(RunError) as failed:
        module.run({"x\ny": some_rows(), "index": np.full(64, 64)})
    assert str(missing.value).startswith("gather: missing x y, index; expected x y: f32[64,16], index")
    assert str(failed.value).startswith("node Gather  7: an index is out of range")
    assert str(BurnishError("a\n  b: \u2028c")) == "a b: c"


@pytest.mark.parametrize(
    "feeds, message",
    [
        ({}, "missing x; expected x: f32"),
        ({"x": some_rows(), "z": some_rows()}, "unknown z"),
        ({"x": some_rows().astype(np.float64)}, r"'x': expected x: f32\[64,16\], found float64\[64,16\]"),
        ({"x": some_rows()[:63]}, r"found float32\[63,16\]"),
        ({"x": [1.0]}, "expected an array"),
    ],
)
def test_wrong_feeds(kernels, feeds, message):
    with pytest.raises(InputError, match=message):
        kernels.module(chain_plan(), WEIGHTS).run(feeds)


class Lent:
    """Something that is no numpy array but speaks DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_inputs_by_dlpack_and_not_contiguous(kernels):
    module, x = kernels.module(chain_plan(), WEIGHTS), some_rows()
    expected = chain_meaning(x)
    np.testing.assert_array_equal(module.run({"x": Lent(x)})["y"], expected)
    np.testing.assert_array_equal(module.run({"x": np.asfortranarray(x)})["y"], expected)
    np.testing.assert_array_equal(module.run({"x": np.repeat(x, 2, 0)[::2]})["y"], expected)


def test_bound_memory_is_used_in_place(kernels):
    context = kernels.module(chain_plan(), WEIGHTS).context()
    x, y = some_rows(), np.zeros((64, 16), np.float32)
    context.bind({"x": x, "y": y})
    context.run()
    np.testing.assert_array_equal(y, chain_meaning(x))
    x += 1
    context.run()
    np.testing.assert_array_equal(y, chain_meaning(x))
    assert context.output("y") is y
    context.bind_output("y", None)
    context.run()
    assert not np.shares_memory(context.output("y"), y)
    np.testing.assert_array_equal(context.output("y"), y)


def test_own_memory_outlives_its_names(kernels):
    context = kernels.module(chain_plan(), WEIGHTS).context(2)
    context.input("x")[:] = 1
    context.run()
    y = context.output("y")
    del context
    np.testing.assert_array_equal(y, chain_meaning(np.ones((64, 16), np.float32)))


def test_binding_refuses(kernels):
    context = kernels.module(chain_plan(), WEIGHTS).context()
    frozen = np.zeros((64, 16), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        context.bind_output("y", frozen)
    with pytest.raises(InputError, match="contiguous"):
        context.bind_output("y", np.zeros((16, 64), np.float32).T)
    with pytest.raises(InputError, match="no input 'w'; chain has x"):
        context.bind_input("w", frozen)
    with pytest.raises(InputError, match=r"^chain: expected a dict of arrays by name, found list$"):
        context.bind([frozen])
    with pytest.raises(InputError, match="threads is 5000"):
        context.module.context(5000)


def test_what_there_is_no_memory_for_is_named(kernels):
    much, little = TensorType(F32, (1 << 43,)), TensorType(F32, (1,))

    def module(x: TensorType, y: TensorType):
        step = KernelCall("nothing", "N", (IN(0, x.nbytes), OUT(0, y.nbytes)), (1,))
        return kernels.module(Plan("n", "", (), (PlanIO("x", x),), (PlanIO("y", y),), 0, 0, (step,)))

    with pytest.raises(NoMemoryError, match=f"^output 'y': no memory for its {1 << 45} bytes$"):
        module(little, much).run({"x": np.zeros(1, np.float32)})
    large = module(much, little)
    with pytest.raises(NoMemoryError, match=f"^input 'x': no memory for its {1 << 45} bytes$"):
        large.run({"x": np.broadcast_to(np.float32(0), (1 << 43,))})
    with pytest.raises(NoMemoryError, match=f"^input 'x': no memory for its {1 << 45} bytes$"):
        large.context().input("x")


def test_memory_of_an_output_is_nobody_elses(kernels):
    module, x = kernels.module(chain_plan(), WEIGHTS), some_rows()
    with pytest.raises(InputError, match="output y overlaps input x in memory; give each its own"):
        module.run({"x": x}, out={"y": x})
    context = module.context()
    rows = len(x)
    both = np.zeros((2 * rows - 1, *x.shape[1:]), np.float32)
    context.bind({"x": both[:rows], "y": both[rows - 1 :]})  # they share a row
    for _ in range(2):
        with pytest.raises(InputError, match="overlaps"):
            context.run()
    context.bind_input("x", x)
    context.run()
    np.testing.assert_array_equal(both[rows - 1 :], chain_meaning(x))


def test_contexts_that_read_each_others_memory_end(kernels):
    module = kernels.module(chain_plan(), WEIGHTS)
    one, other = module.context(2), module.context(2)
    one.bind_input("x", other.output("y"))
    other.bind_input("x", one.output("y"))
    gone = [weakref.ref(context._handle) for context in (one, other)]
    del one, other
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_module_that_ran_ends_with_its_last_reference(kernels):
    gc.collect()
    gc.disable()
    try:
        module = kernels.module(chain_plan(), WEIGHTS)
        module.run({"x": some_rows()}, 2)
        gone = [weakref.ref(module), weakref.ref(module._owner)]
        del module
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


class Together(dict):
    """Inputs that are there when five threads have asked for theirs."""

    barrier = threading.Barrier(5)

    def __getitem__(self, name: str) -> np.ndarray:
        self.barrier.wait(20)
        return super().__getitem__(name)


@pytest.mark.parametrize(("threads", "kept"), [(1, 5), (40, 2)])
def test_few_contexts_are_kept(kernels, threads, kept):
    module = kernels.module(chain_plan(), WEIGHTS)
    given = Together(x=some_rows())
    callers = [threading.Thread(target=module.run, args=(given, threads)) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [len(idle) for idle in module._idle.values()] == [kept]


def test_an_interrupt_costs_one_context(kernels):
    module = kernels.module(chain_plan(), WEIGHTS)
    module.run({"x": some_rows()})
    (context,) = next(iter(module._idle.values()))
    with context._busy:  # as an interrupt leaves it right behind taking it
        with pytest.raises(InputError, match="another thread"):
            module.run({"x": some_rows()})
        np.testing.assert_array_equal(module.run({"x": some_rows()})["y"], chain_meaning(some_rows()))


def test_a_forked_child_has_threads_of_its_own(kernels):
    module = kernels.module(chain_plan(), WEIGHTS)
    module.run({"x": some_rows()}, 3)

    def check(item: None) -> str | None:
        right = np.array_equal(module.run({"x": some_rows()}, 3)["y"], chain_meaning(some_rows()))
        return None if right and len(os.listdir("/proc/self/task")) == 3 else "no threads, or wrong"

    assert run_forked([None], check) == [None]


def test_a_context_is_one_threads_at_a_time(kernels):
    context = kernels.module(chain_plan(), WEIGHTS).context()
    with context._busy:  # as while another thread runs
        bind, see = lambda: context.bind_input("x", some_rows()), lambda: context.output("y")
        for call in (context.run, context.run_profiled, bind, see):
            with pytest.raises(InputError, match="running in another thread"):
                call()
    context.bind_input("x", some_rows())
    assert len(context.run_profiled()) == 3


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"y": None}, r"output 'y': expected y: f32.64,16., found None"),
        ({"y": np.float32(0)}, r"output 'y': expected an array y: f32.64,16., found float32"),
        ({"z": np.zeros((64, 16), np.float32)}, "no output 'z'; chain has y"),
        ([np.zeros((64, 16), np.float32)], "out: expected a dict of arrays by name, found list"),
    ],
)
def test_outputs_that_cannot_be_written_into(kernels, out, message):
    module = kernels.module(chain_plan(), WEIGHTS)
    with pytest.raises(InputError, match=message):
        module.run({"x": some_rows()}, out=out)
    np.testing.assert_array_equal(module.run({"x": some_rows()})["y"], chain_meaning(some_rows()))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 0, 4)], ids=str)
def test_copies_every_dtype(kernels, dtype, shape):
    kind = TensorType(dtype, shape)
    step = Copy(IN(0, kind.nbytes), OUT(0, kind.nbytes), "Identity_0")
    module = kernels.module(Plan("c", "", (), (PlanIO("x", kind),), (PlanIO("y", kind),), 0, 0, (step,)))
    x = (np.arange(kind.size) % 2).reshape(shape).astype(dtype.numpy)
    y = module.run({"x": x})["y"]
    assert y.dtype == dtype.numpy and y.shape == shape
    np.testing.assert_array_equal(y, x)
    assert module.inputs[0].dtype_name == dtype.name


def test_narrow_dtypes_do_not_pass_for_each_other(kernels):
    kind = TensorType(F16, (4,))
    step = Copy(IN(0, 8), OUT(0, 8))
    module = kernels.module(Plan("c", "", (), (PlanIO("x", kind),), (PlanIO("y", kind),), 0, 0, (step,)))
    with pytest.raises(InputError, match="expected x: f16"):
        module.run({"x": np.zeros(4, ml_dtypes.bfloat16)})
    assert BOOL.bytes == 1


def test_profile_times_every_step(kernels):
    module = kernels.module(chain_plan(), WEIGHTS)
    for threads in (1, 2):
        times = module.run_profiled({"x": some_rows()}, threads)
        assert [(t.kernel, t.node) for t in times] == [(s.kernel, s.node) for s in module.steps]
        assert all(0 < t.ns < 10**9 for t in times)


def test_unknown_cpu_feature_is_refused(kernels):
    with pytest.raises(InputError, match="this CPU lacks avx9000"):
        kernels.module(chain_plan(("avx9000",)), WEIGHTS)


@pytest.mark.parametrize("plan", [chain_plan(), prepared_plan()], ids=["stored", "prepared"])
def test_no_single_byte_of_a_plan_can_crash(kernels, plan):
    """Every byte of the plan is set to three other values: an error, or a plan that is still sound."""
    blob, addresses = encode(plan), [kernels.address("nothing")] * len(plan.kernels)
    refused = 0
    for position in range(len(blob)):
        for change in (1, 0x80, 0xFF):
            hostile = bytearray(blob)
            hostile[position] ^= change
            try:
                module = module_from_memory(bytes(hostile), addresses, WEIGHTS)
                if not 24 <= position < 56:  # sizes of arena and scratch: a machine may well have that much
                    module.context(1)
            except (InternalError, InputError, RunError):
                refused += 1
    assert refused > len(blob)


@pytest.mark.parametrize("size", [0, 7, 103, 104, 200, -1])
def test_a_plan_cut_short_is_refused(kernels, size):
    plan = chain_plan()
    with pytest.raises(InternalError, match="broken module"):
        module_from_memory(encode(plan)[:size], kernels.addresses(plan), WEIGHTS)


def test_wrong_numbers_of_kernels_and_weights_are_refused(kernels):
    plan = chain_plan()
    with pytest.raises(InternalError, match="kernels' number"):
        module_from_memory(encode(plan), kernels.addresses(plan)[:2], WEIGHTS)
    with pytest.raises(InternalError, match="weights' size"):
        module_from_memory(encode(plan), kernels.addresses(plan), WEIGHTS[:-1])
    with pytest.raises(RunError, match="no memory"):
        kernels.module(replace(plan, arena_size=1 << 46), WEIGHTS).context()
