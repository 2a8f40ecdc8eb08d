"""Plans from measured costs: measured once, kept, and as right as any other."""

import numpy as np
from burnish import pipeline
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from burnish.op_tuner.records import Records

from .test_plan_layout import network


def test_measured_once(tmp_path):
    model = network()
    path = tmp_path / "records.jsonl"
    options = {"threads": 1, "cache": False, "measure": True, "records": path}
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
