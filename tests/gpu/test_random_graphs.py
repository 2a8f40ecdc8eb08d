"""Random models compiled as a whole for GPUs, on an OpenCL driver, against onnxruntime."""

from __future__ import annotations

import pytest

from ..compiled.test_random_graphs import compare


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_model(opencl, seed):
    compare(seed, target="opencl")
