"""Plans from measured costs: measured once, kept, and as right as any other."""

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import Graph, Node, interpret
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.ops.recurrence import LstmRecurrence
from burnish.compiler.target import host
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.alternatives import Decision, alternatives
from burnish.graph_passes.task_cost import decided_task
from burnish.op_tuner.measure import measure
from burnish.op_tuner.records import Records

from .test_plan_layout import network, sequences


def test_measured_once(tmp_path):
    model = network(short=True)
    path = tmp_path / "records.jsonl"
    options = {"threads": 1, "measure": True, "records": path}
    module = pipeline.compile(model, **options)
    lines = path.read_text().splitlines()
    assert len(lines) > 10
    assert Records(path, shipped=False)
    pipeline.compile(model, **options)
    assert path.read_text().splitlines() == lines  # nothing was measured again
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 7)).astype(np.float32)
    want = interpret(import_onnx(model), {"x": x})
    for name, array in module.run({"x": x}).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=2e-5 * np.abs(want[name]).max())


def test_products_and_recurrences_are_measured():
    """Each of their ways once, and it gives what it should."""
    graph = pipeline.optimise(import_onnx(sequences()), host(), 2, stop_after="fuse")
    measured = {}
    for node in graph.nodes:
        for decision in alternatives(graph, node, host().lanes(4)):
            if decision.algorithm not in ("direct", *measured) and decision.reads is None:
                task = decided_task(graph, node, decision, host(), 2)
                measured[decision.algorithm] = measure(task, DefaultConfig(), threads=2, seconds=0.001)
    assert {name: m.error for name, m in measured.items()} == dict.fromkeys(
        ("packed", "dot", "gang", "single")
    )


@pytest.mark.parametrize("algorithm", ["direct", "gang", "single"])
def test_long_recurrence_is_measured(algorithm):
    """Rounding errors must not grow over many steps, or what is right would look wrong."""
    steps, hidden = 40, 300
    rng = np.random.default_rng(0)
    shapes = {"xw": (steps, 1, 4 * hidden), "y": (steps, 1, hidden), "h": (1, hidden), "c": (1, hidden)}
    shapes["r"] = (4 * hidden, hidden)
    types = {value: TensorType(F32, shape) for value, shape in shapes.items()}
    node = Node(LstmRecurrence(), ("xw", "r"), ("y", "h", "c"), "lstm")
    weights = {"r": rng.standard_normal(shapes["r"]).astype(np.float32)}
    graph = Graph("g", ("xw",), ("y", "h", "c"), (node,), types, weights)
    task = decided_task(graph, node, Decision(algorithm=algorithm), host(), 1)
    assert measure(task, DefaultConfig(), threads=1, seconds=0.001).error is None
