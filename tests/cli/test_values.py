"""Inputs that `--value` makes constants of, and models that declare what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from burnish.commands.compare import compare
from burnish.commands.source import static_model
from burnish.commands.verify import judged
from onnx import TensorProto, helper


def test_all_contestants_have_the_same_constants():
    """Inputs that have initializers are defaults, which onnxruntime may not fold."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in ("x", "w", "y")]
    held = [onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", infos[:2], infos[2:], held)
    for version in (3, 8):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=version)
        found = static_model(model, {}, {})
        assert [i.name for i in found.graph.input] == ["x"] and found.ir_version == max(version, 4)
        onnx.checker.check_model(found)


@pytest.fixture
def resampled(tmp_path):
    """y = x[:, ::2] if rate == 16000 else x: a condition that decides a shape."""
    every, half = (
        helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)]
        )
        for name, node in (
            ("every", helper.make_node("Identity", ["x"], ["every_y"])),
            ("half", helper.make_node("Slice", ["x", "zero", "end", "one", "two"], ["half_y"])),
        )
    )
    nodes = [
        helper.make_node("Equal", ["rate", "high"], ["is_high"], name="compare"),
        helper.make_node("If", ["is_high"], ["y"], name="choose", then_branch=half, else_branch=every),
    ]
    constants = {
        "high": np.int64(16000),
        **{n: np.array([v]) for n, v in zip(("zero", "end", "one", "two"), (0, 99, 1, 2))},
    }
    graph = helper.make_graph(
        nodes,
        "resampled",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 6)),
            helper.make_tensor_value_info("rate", TensorProto.INT64, ()),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "resampled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_input_becomes_a_constant(burnish, error, resampled, tmp_path):
    assert "give its value: --value rate=…" in error("run", resampled, "--dim", "batch=2")
    for rate, sizes in ((16000, "2,3"), (8000, "2,6")):
        given = (resampled, "--dim", "batch=2", "--value", f"rate={rate}")
        said = burnish("run", *given).stdout
        assert f"output y: f32[{sizes}]" in said and "input  rate" not in said
        assert "ok: 2 checks" in burnish("verify", *given, "--threads", 1).stdout
    np.save(tmp_path / "rate.npy", np.int64(16000))
    module = tmp_path / "m.so"
    burnish(
        "compile", resampled, "-o", module, "--dim", "batch=1", "--value", f"rate={tmp_path / 'rate.npy'}"
    )
    assert "output y: f32[1,3]" in burnish("run", module).stdout
    assert "compiled for its values" in error("run", module, "--value", "rate=8000")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rate=16000.5", "the input holds int64, which this is not"),
        ("rate=true", "the input holds int64, which this is not"),
        ('rate="fast"', "the input holds int64, which this is not"),
        ("rate=[16000]", "input 'rate' is declared as i64[]; the shape [1] does not fit"),
        ("rate=fast", "expected a number, true, false, a list or a .npy file"),
        ("rate=[1,[2]]", "expected a number, true, false, a list or a .npy file"),
        ("rate=" + 5000 * "[", "expected a number, true, false, a list or a .npy file"),
        ("rate=archive.npy", "archive.npy is an archive of arrays; expected one array"),
        ("rate=cut.npy", "cut.npy is not a .npy file of numbers"),
        ("rate=nowhere.npy", "--value rate=nowhere.npy: No such file or directory"),
        ("speed=1", "--value is given for 'speed'; the inputs are rate, x"),
        ("rate=", "expected NAME=VALUE"),
        ("rate", "expected NAME=VALUE"),
    ],
)
def test_values_that_do_not_fit(error, resampled, value, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("archive.npy", "wb") as file:
        np.savez(file, rate=np.int64(16000))
    Path("cut.npy").write_bytes(Path("archive.npy").read_bytes()[:40])
    assert message in error("run", resampled, "--dim", "batch=2", "--value", value)


def test_a_declaration_that_is_wrong_is_said_once(burnish, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name="act")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", (2, 3)), ("y", (6,))))
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=8)
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "m.onnx")
    result = burnish("verify", tmp_path / "m.onnx", "--threads", 1, "--against", "reference")
    said = (
        "burnish: warning: node 'act' (Relu): graph output 'y' is declared as f32[6], but computes f32[2,3]"
    )
    assert result.stderr.count(said) == 1 and "ok: 2 checks" in result.stdout


def test_who_is_right_where_onnxruntime_differs():
    """A small probability that onnxruntime rounds to zero is not wrong; one that is wrong by both is."""
    ours, theirs = {"y": np.float32([1e-7, 1e-4])}, {"y": np.float32([0.0, 1e-4])}
    (check,) = checks = [compare("y", "1 thread", ours["y"], theirs["y"])]
    assert not check.ok
    assert judged(checks, ours, None, "f32", 0.0) == checks
    assert judged(checks, ours, lambda: theirs, "f32", 0.0) == checks
    (again,) = judged(checks, ours, lambda: ours, "f32", 0.0)
    assert again.ok and again.text().endswith("by the operators' definitions, onnxruntime has 1.0e-03")


def test_a_constant_of_a_model_of_version_3(burnish, tmp_path):
    """Whose constants are inputs, too."""
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    infos = [
        helper.make_tensor_value_info(*i)
        for i in (("x", TensorProto.FLOAT, (2, 3)), ("s", TensorProto.INT64, (2,)))
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    onnx.save(model, tmp_path / "m.onnx")
    said = burnish("run", tmp_path / "m.onnx", "--value", "s=[3,-1]").stdout
    assert "output y: f32[3,2]" in said
