"""Weights that are made when a module is opened: once, shared by its contexts, freed after the last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from burnish.compiler.ir.plan import KernelCall, encode
from burnish.errors import BurnishError, InternalError
from burnish.runtime.binding import module_from_memory, open_module
from burnish.runtime.build import link_module

from .conftest import NBYTES, WEIGHTS, chain_meaning, prepared_plan, some_rows
from .test_run import gather_plan

PLAN = prepared_plan()
X = some_rows()
WANT = chain_meaning(X, WEIGHTS + 1)


@pytest.fixture
def module_file(kernels, tmp_path) -> Path:
    path = tmp_path / "prepared.so"
    link_module([kernels.object], encode(PLAN), WEIGHTS.tobytes(), PLAN.kernels, path)
    return path


def test_contexts_share_what_was_made(kernels):
    module = kernels.module(PLAN, WEIGHTS)
    contexts = [module.context(threads) for threads in (1, 2, 3)]
    for context in contexts:
        context.bind_input("x", X)
        context.run()
        np.testing.assert_array_equal(context.output("y"), WANT)
    assert [s.node for s in module.steps] == ["Add_0", "Mul_1", "Rev_2"]  # setup steps are none of them


def test_opened_and_closed_in_any_order(module_file):
    first = open_module(module_file)
    second = open_module(module_file)
    np.testing.assert_array_equal(first.run({"x": X})["y"], WANT)
    del first
    np.testing.assert_array_equal(second.run({"x": X}, 2)["y"], WANT)
    del second
    np.testing.assert_array_equal(open_module(module_file).run({"x": X})["y"], WANT)


def test_opened_by_many_at_once(module_file):
    def open_and_run(_: int) -> bool:
        return all(np.array_equal(open_module(module_file).run({"x": X})["y"], WANT) for _ in range(5))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(open_and_run, range(16)))


def test_a_context_outlives_its_module(kernels):
    context = kernels.module(PLAN, WEIGHTS).context(2)
    context.bind_input("x", X)
    context.run()
    np.testing.assert_array_equal(context.output("y"), WANT)


def test_a_setup_step_that_fails_names_its_node(kernels):
    gather = gather_plan()
    step = next(s for s in gather.steps if isinstance(s, KernelCall))
    args = tuple(replace(ref, space="weights", index=0, offset=0) for ref in step.reads)
    args += tuple(replace(ref, space="prepared", index=0, offset=0) for ref in step.written)
    size = max(ref.end for ref in args[len(step.reads) :])
    plan = replace(gather, setup=(replace(step, args=args),), prepared_size=size, weights_size=NBYTES)
    with pytest.raises(BurnishError, match=r"node Gather_7 \(embedding\): an index is out of range"):
        kernels.module(plan, np.full(NBYTES, 127, np.uint8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prepared_size": 2 * NBYTES}, "not what they use"),
        ({"prepared_size": 0}, "outside of its memory"),
        ({"setup": ()}, "not what they use"),
        ({"setup": (PLAN.steps[0], *PLAN.setup)}, "takes an input or output"),
    ],
)
def test_a_setup_that_contradicts_itself_is_refused(kernels, change, message):
    plan = replace(PLAN, **change)
    with pytest.raises(InternalError, match=message):
        module_from_memory(encode(plan), kernels.addresses(plan), WEIGHTS)
