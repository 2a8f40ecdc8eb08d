"""Random models compiled as a whole against onnxruntime, on 1 and 3 threads."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish import pipeline
from burnish.graph_passes.plan_layout import MODES
from burnish.graph_passes.split_setup import WEIGHT_FORMS
from onnx.reference import ReferenceEvaluator

from ..passes.make import scale_of
from .forked import run_forked
from .kernels import runnable_targets
from .random_graphs import random_model

SEEDS = range(60)
TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "float16": 3e-2}
"""Of the largest value: rounding grows through some twenty operators; a sixth, of HardSwish, is an f32 in
ONNX's reference whatever its operand's type is."""


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By onnxruntime; by ONNX's reference for types of which it lacks operators, or rounds fewer results."""
    names = [o.name for o in model.graph.output]
    if model.graph.output[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        with np.errstate(all="ignore"):
            return dict(zip(names, ReferenceEvaluator(model).run(names, feeds)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, feeds)))


def check(seed: int) -> None:
    """Plans of all kinds, weights of both, and code that is laid out for one to three threads."""
    targets = runnable_targets()
    options = {"weights": WEIGHT_FORMS[seed // 3 % 2], "threads": seed // 6 % 3 + 1}
    compare(seed, target=targets[seed % len(targets)], **options)


def compare(seed: int, **options: Any) -> None:
    model, feeds = random_model(seed)
    want = expected(model, feeds)
    module = pipeline.compile(model, cache=False, plan=MODES[seed % 3], **options)
    for threads in (1, 3):
        got = module.run(feeds, threads=threads)
        assert got.keys() == want.keys()
        for name, array in want.items():
            assert got[name].shape == array.shape, f"{name}: {got[name].shape}, expected {array.shape}"
            tolerance = TOLERANCE[array.dtype.name] * max(0.2, scale_of(array))
            np.testing.assert_allclose(
                got[name].astype(np.float64),
                array.astype(np.float64),
                rtol=0,
                atol=tolerance,
                err_msg=f"{name} on {threads} threads",
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_model(seed: int) -> None:
    (message,) = run_forked([seed], check)
    assert message is None, message
