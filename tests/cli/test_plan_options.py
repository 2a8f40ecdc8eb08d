"""Options that bound what a plan may choose (--accuracy, --memory-limit), and how weights are stored."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import burnish as package
import numpy as np
import pytest
from burnish.commands.options import compile_line, parse_size
from burnish.errors import InputError
from burnish.graph_passes.plan_layout import PlanOptions

TARGET = ("--target", "x86-64-v3", "--threads", 1)


def test_accuracy_bounds_the_algorithms(burnish):
    graph = ("resnet18", "--stop-after", "assign_layouts", *TARGET)
    assert "winograd" in burnish("compile", *graph).output
    assert "winograd" not in burnish("compile", *graph, "--accuracy", "1e-7").output
    assert "winograd" in burnish("plan", "resnet18", *TARGET).output
    assert "winograd" not in burnish("plan", "resnet18", *TARGET, "--accuracy", 0).output


@pytest.mark.parametrize("bound", ["-1", "much"])
def test_accuracy_that_is_none(error, bound):
    assert "--accuracy" in error("plan", "resnet18", "--accuracy", bound, code=2)


def test_precision_is_a_question_of_the_target(burnish, error):
    graph = ("plan", "dqn", "--target", "cuda-sm80")
    assert "tensor_tf32" not in burnish(*graph).output
    assert "tensor_tf32" in burnish(*graph, "--precision", "tf32").output
    for command in ("plan", "tune", "bench"):
        said = error(command, "dqn", *TARGET[:2], "--precision", "tf32")
        assert "precision tf32: target x86-64-v3 has no tensor cores; expected f32" in said
    assert "expected some of f32, tf32, f16, bf16" in error("bench", "dqn", "--precision", "f32,f8")
    with pytest.raises(InputError, match="precision 'f8': expected one of f32"):
        PlanOptions(precision="f8")


def test_options_are_checked():
    with pytest.raises(InputError, match="expected an error from 0 on"):
        PlanOptions(accuracy=float("nan"))


@pytest.mark.parametrize("size", ["64 mb", "0", "-1", "much", "0.1", "5MB5", "1TB", ""])
def test_sizes_that_are_none(error, two_layers, size):
    assert "expected a size such as 64MB or 1.5GiB" in error("plan", two_layers, "--memory-limit", size)


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64_000_000), ("1.5GiB", 3 << 29), ("7", 7), ("2 KiB", 2048), (None, None)]
)
def test_sizes(text, size):
    assert parse_size(None, None, text) == size


def test_memory_limit(burnish, error, two_layers, tmp_path):
    model = (two_layers, "--dim", "batch=2")
    assert re.search(r"memory [\d.]+ kB", burnish("plan", *model, "--memory-limit", "1MB").output)
    out = tmp_path / "m.so"
    text = burnish("compile", *model, "-o", out, "--memory-limit", "1MB", "--threads", 1).output
    assert re.search(r"opened: weights [\d.]+ kB, arena [\d.]+ kB, [\d.]+ kB in all", text)
    for command in (("plan", *model), ("compile", *model, "-o", tmp_path / "none.so")):
        assert "no plan stays within the memory limit of 10 bytes; the smallest" in error(
            *command, "--memory-limit", "10"
        )
    assert not (tmp_path / "none.so").exists()


def test_a_missing_solver_is_named(error, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    command = ("plan", "digits", *TARGET, "--memory-limit", "1kB")
    assert "pip install burnish[tune]" in error(*command)


def test_compact_weights(burnish, two_layers, tmp_path):
    for weights in ("packed", "compact"):
        out = tmp_path / f"{weights}.so"
        burnish("compile", two_layers, "--dim", "batch=2", "-o", out, "--weights", weights)
    x = {"x": np.ones((2, 4), np.float32)}
    packed, compact = (package.load(tmp_path / f"{w}.so").run(x)["y"] for w in ("packed", "compact"))
    np.testing.assert_array_equal(packed, compact)


def test_weights_are_stored_as_asked(burnish, tmp_path):
    """A convolution whose packed weights are larger than the model's."""
    sizes = []
    for weights in ("packed", "compact"):
        out = tmp_path / f"{weights}.so"
        burnish("compile", "c2", *TARGET, "--accuracy", 1, "-o", out, "--weights", weights)
        sizes.append(out.stat().st_size)
    assert sizes[1] < 0.8 * sizes[0]


def test_plans_by_name(burnish):
    graphs = {
        plan: burnish("compile", "resnet18", "--stop-after", "assign_layouts", *TARGET, "--plan", plan).output
        for plan in ("global", "fixed")
    }
    assert "winograd" in graphs["global"] and graphs["fixed"] != graphs["global"]


def test_no_cache(burnish, two_layers, tmp_path, monkeypatch):
    package.compile(two_layers, dims={"batch": 2})  # with the runtime where it is found again
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    model = ("compile", two_layers, "--dim", "batch=2", "-o", tmp_path / "m.so")
    burnish(*model, "--no-cache")
    assert not list((tmp_path / "kernels").glob("*"))
    burnish(*model)
    assert list((tmp_path / "kernels").glob("*"))


def test_the_line_that_compiles_with_records(tmp_path):
    how = {"shapes": {"x y": (1, 3)}, "dims": {"n": 2}, "values": {"rate": "[1, 2]"}, "target": "x86-64-v3"}
    bounds = {"plan": "local", "accuracy": 1e-6, "precision": "f32", "memory_limit": 7}
    line = compile_line("my model.onnx", 2, Path("r.jsonl"), **how, **bounds, weights="compact")
    assert shlex.split(line) == [
        *(
            "burnish",
            "compile",
            "my model.onnx",
            "--target",
            "x86-64-v3",
            "--shape",
            "x y:1x3",
            "--dim",
            "n=2",
        ),
        *("--value", "rate=[1, 2]", "--plan", "local", "--accuracy", "1e-06", "--memory-limit", "7"),
        *("--weights", "compact"),
        *("--threads", "2", "--records", "r.jsonl", "-o", "MODULE"),
    ]
    plain = {"shapes": {}, "dims": {}, "values": {}, "target": "host"}
    bounds = {"plan": "global", "accuracy": PlanOptions().accuracy, "precision": "f32", "memory_limit": None}
    assert compile_line("dqn", 1, Path("r"), **plain, **bounds) == (
        "burnish compile dqn --threads 1 --records r -o MODULE"
    )
