"""A sample of ONNX's node tests on a device. `run_node_tests --target opencl --listed` runs all."""

from __future__ import annotations

import pytest

from ..onnx_backend.node_tests import cases, own, preparing, run_case

CHUNKS = 4
SAMPLE = own()[::10]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_node_tests_pass(device, chunk):
    prepare = preparing("compiled", device.name)
    outcomes = [run_case(cases()[name], prepare) for name in SAMPLE[chunk::CHUNKS]]
    failed = {o.name: f"{o.kind}: {o.detail}" for o in outcomes if o.kind != "pass"}
    assert len(outcomes) * CHUNKS >= 100 and not failed
