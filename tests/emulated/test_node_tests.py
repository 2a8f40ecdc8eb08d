"""A sample of ONNX's node tests on AArch64. `run_node_tests --target cortex-a72 --listed` runs all."""

from __future__ import annotations

import pytest

from ..onnx_backend.node_tests import cases, own, preparing, run_case

CHUNKS = 8
TARGETS = ("cortex-a72", "cortex-a76")
SAMPLE = own()[::7]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_node_tests_pass(aarch64, chunk):
    target = TARGETS[chunk % len(TARGETS)]
    outcomes = [run_case(cases()[name], preparing("compiled", target)) for name in SAMPLE[chunk::CHUNKS]]
    failed = {o.name: f"{o.kind}: {o.detail}" for o in outcomes if o.kind != "pass"}
    assert len(outcomes) * CHUNKS >= 150 and not failed
