"""Modules for AArch64 made on this machine: right under an emulator, from Python and from C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import burnish
import numpy as np
import onnx
import pytest
from burnish.compiler.target import TARGETS, runs_here
from burnish.errors import InputError, RunError, ToolError
from burnish.models import zoo
from burnish.runtime import build

from ..frontends.build import I64, model, node, value

ARM = [t.name for t in TARGETS.values() if t.arch == "aarch64" and t.kind == "cpu"]
EXAMPLES = Path(__file__).parents[2] / "examples" / "c"
pytestmark = pytest.mark.skipif(
    any(runs_here(TARGETS[name]) for name in ARM), reason="this machine needs no emulator"
)


@pytest.fixture(scope="module")
def digits() -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """Model, inputs, and the outputs here."""
    network = zoo.build("digits")
    feeds = zoo.random_inputs(network, 0)
    return network, feeds, burnish.compile(network, threads=1).run(feeds)["logits"]


@pytest.mark.parametrize("target", ARM)
def test_digits_agrees_with_this_machine(aarch64, digits, target):
    network, feeds, expected = digits
    module = burnish.compile(network, target=target, threads=2)
    assert module.emulated
    assert [str(i) for i in module.inputs] == ["images: f32[1,1,8,8]"]
    for threads in (1, 2):
        found = module.run(feeds, threads)["logits"]
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_every_half_is_converted_by_an_instruction(aarch64):
    """f16 → f32 · 1 → f16: the same bits, and what lies between two halves is rounded to even."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    to = {"to": onnx.TensorProto.FLOAT}, {"to": onnx.TensorProto.FLOAT16}
    cast = model(
        [node("Cast", ["x"], ["wide"], **to[0]), node("Mul", ["wide", "factor"], ["product"]),
         node("Cast", ["product"], ["y"], **to[1])],
        [value("x", [65536], onnx.TensorProto.FLOAT16), value("factor", [])],
        [value("y", [65536], onnx.TensorProto.FLOAT16)],
    )  # fmt: skip
    module = burnish.compile(cast, target="cortex-a72", threads=1)
    for factor in (1.0, 1.0004883, 0.00048828125):
        with np.errstate(all="ignore"):
            expected = (halves.astype(np.float32) * np.float32(factor)).astype(np.float16)
        found = module.run({"x": halves, "factor": np.float32(factor)})["y"]
        np.testing.assert_array_equal(found, expected)


def execute(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_c_examples(aarch64, digits, tmp_path, require_tool):
    """A program that opens the .so, with the shared libraries of the target, and one that the .a is in."""
    network, feeds, expected = digits
    folder = shutil.copytree(EXAMPLES, tmp_path / "c")
    module = burnish.compile(network, target="cortex-a72", threads=1)
    module.save(folder / "digits.so")
    module.save(folder / "digits.a")
    (folder / "images.raw").write_bytes(feeds["images"].tobytes())
    make = [require_tool("make"), "CC=aarch64-linux-gnu-gcc", f"BURNISH={build.HERE}"]
    execute(*make, "main", cwd=folder)
    execute(*make, "static", "LDFLAGS=-static", cwd=folder)
    qemu = ["qemu-aarch64-static", "-cpu", "cortex-a72"]
    system = ["-L", "/usr/aarch64-linux-gnu"]
    text = execute(*qemu, *system, "./main", "digits.so", "--repeat", 1, "images=images.raw", cwd=folder)
    best = expected.argmax()
    assert f"largest {expected.ravel()[best]:.3g}"[:-1] in text and f" at {best}\n" in text
    assert "digits: ran" in execute(*qemu, "./static", cwd=folder)


def test_a_module_for_another_machine_is_refused_here(aarch64, digits, tmp_path):
    burnish.compile(digits[0], target="cortex-a76", threads=1).save(tmp_path / "m.so")
    with pytest.raises(InputError, match="compiled for cortex-a76, but this CPU lacks fp-armv8"):
        burnish.load(tmp_path / "m.so")


def test_without_an_emulator(digits, monkeypatch):
    network, feeds, _ = digits
    module = burnish.compile(network, target="cortex-a53", threads=1)
    with pytest.raises(InputError, match="which this machine is not"):
        module.context()
    with pytest.raises(InputError, match="missing images"):
        monkeypatch.setenv("BURNISH_EMULATOR", "no-such-emulator")
        module.run({})
    monkeypatch.delenv("BURNISH_EMULATOR")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match="for cortex-a53, which this machine is not, and no emulator"):
        module.run(feeds)


def test_what_was_linked_may_be_swept_away(aarch64, digits):
    network, feeds, expected = digits
    module = burnish.compile(network, target="cortex-a53", threads=1)
    for _ in range(2):
        found = module.run(feeds)["logits"]
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
        shutil.rmtree(module._runner._linked.name)


def test_an_error_of_the_run_names_the_node(aarch64):
    pick = node("Gather", ["x", "i"], ["y"], name="Pick")
    gather = model([pick], [value("x", [3]), value("i", [2], I64)], [value("y", [2])])
    module = burnish.compile(gather, target="cortex-a53", threads=1)
    x = np.array([1, 2, 3], np.float32)
    assert module.run({"x": x, "i": np.array([2, -3])})["y"].tolist() == [3, 1]
    with pytest.raises(RunError, match="Pick"):
        module.run({"x": x, "i": np.array([2, 3])})
