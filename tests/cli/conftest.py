"""The command line in this process, and a small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from burnish.cli import cli
from burnish.commands import progress
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def burnish() -> Callable[..., Result]:
    """Runs `burnish ARGUMENTS…`; `code` is the exit code that must result."""

    def run(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="burnish")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def error(burnish: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The message of a command that must fail: one line on standard error, exit code 1.

    Progress stands there, too, on a machine that is slow enough."""
    monkeypatch.setattr(progress, "EVERY", float("inf"))

    def run(*arguments: object, code: int = 1) -> str:
        result = burnish(*arguments, code=code)
        assert result.stderr.startswith("burnish: error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr.strip()

    return run


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x (batch, 4) → "first" = tanh(x W) → y = softmax("first" V), with an open batch."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32), name)
        for name, shape in (("W", (4, 5)), ("V", (5, 3)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["product"], name="multiply"),
        helper.make_node("Tanh", ["product"], ["first"], name="squash"),
        helper.make_node("MatMul", ["first", "V"], ["scores"], name="score"),
        helper.make_node("Softmax", ["scores"], ["y"], name="normalise"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "two_layers", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("models") / "two_layers.onnx"
    onnx.save(model, path)
    return path
