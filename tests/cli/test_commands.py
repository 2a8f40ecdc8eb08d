"""Each command on something small."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from burnish import InferenceSession, InputError, UnsupportedError, compile, load
from burnish.cli import cli
from burnish.commands import bench_command, source
from burnish.commands import compile as compile_command
from burnish.commands import run as run_command
from burnish.commands.compare import compare
from burnish.commands.outputs import least_tolerance
from burnish.commands.peers import OnnxRuntime
from burnish.compiler.target import host
from burnish.op_tuner.costs import MeasuredCosts
from burnish.op_tuner.record import PLAN
from burnish.op_tuner.records import read
from click.testing import CliRunner
from onnx import TensorProto, helper, save

from ..compiled import quantised
from ..conftest import require_module


def test_compile_then_run_with_files(burnish, two_layers, tmp_path):
    path = tmp_path / "m.so"
    said = burnish("compile", two_layers, "-o", path, "--dim", "batch=2", "--threads", 1).stdout
    assert said.startswith(f"wrote {path}: ") and "weights" in said
    x = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x.raw").write_bytes(x.tobytes())
    outputs = []
    for name in ("x.npy", "x.raw"):
        said = burnish("run", path, "--input", f"x={tmp_path / name}", "--output", tmp_path / name[2:]).stdout
        assert "output y: f32[2,3]" in said
        outputs.append(np.load(tmp_path / name[2:] / "y.npy"))
    expected = load(path).run({"x": x})["y"]
    np.testing.assert_array_equal(outputs, [expected, expected])
    np.testing.assert_allclose(expected.sum(1), 1, rtol=1e-5)


def test_compile_an_archive_writes_its_header(burnish, error, two_layers, tmp_path, require_tool):
    require_tool("objcopy")
    line = ("compile", two_layers, "-o", tmp_path / "net.a", "--shape", "x:1x4")
    for _ in range(2):
        burnish(*line)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["net.a", "net.h"]
        assert "burnish_net" in (tmp_path / "net.h").read_text()
    (tmp_path / "net.h").write_text("int mine;\n")
    assert "net.h is no header of a module" in error(*line)
    assert (tmp_path / "net.h").read_text() == "int mine;\n"


def test_compile_is_for_the_threads_that_were_tuned(burnish, two_layers, tmp_path, monkeypatch):
    asked: list[int | None] = []
    found = SimpleNamespace(records=None, threads=1)  # as of a core that is simulated
    opening = compile_command.open_module

    def opened(source, shapes, dims, threads, **how):
        asked.append(threads)
        return opening(source, shapes, dims, threads, **how)

    monkeypatch.setattr(compile_command, "tune_first", lambda *arguments, **how: found)
    monkeypatch.setattr(compile_command, "open_module", opened)
    burnish("compile", two_layers, "-o", tmp_path / "m.so", "--dim", "batch=2", "--tune", 1)
    assert asked == [1]


def test_run_is_the_same_for_the_same_seed(burnish):
    first = burnish("run", "digits", "--seed", 1).stdout
    assert first == burnish("run", "digits", "--seed", 1, "--threads", 2).stdout
    assert first != burnish("run", "digits", "--seed", 2).stdout


def test_run_refuses_inputs_that_do_not_fit(error, two_layers, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    (tmp_path / "x.raw").write_bytes(b"12345")
    options = ("--dim", "batch=2", "--input")
    assert "f32[2,4], found float32[3,4]" in error("run", two_layers, *options, f"x={tmp_path / 'x.npy'}")
    assert "has 5 bytes" in error("run", two_layers, *options, f"x={tmp_path / 'x.raw'}")
    assert "there is no input 'z'" in error("run", two_layers, *options, f"z={tmp_path / 'x.raw'}")
    assert "there is no file" in error("run", two_layers, *options, "x=nowhere.npy")
    assert "--dim batch=" in error("run", two_layers)


def test_two_opaque_bytes_are_bfloat16_and_nothing_else(tmp_path):
    numbers = np.array([1.5, -2, 0], helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    np.save(tmp_path / "x.npy", numbers)
    for code in (TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.INT16):
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
        read = run_command.read_array(tmp_path / "x.npy", SimpleNamespace(dtype=dtype))
        assert (read.dtype == dtype) == (code == TensorProto.BFLOAT16)
        info = helper.make_tensor_value_info("x", code, (3,))
        if code == TensorProto.BFLOAT16:
            np.testing.assert_array_equal(source._value("x", str(tmp_path / "x.npy"), info), numbers)
        else:
            with pytest.raises(InputError, match="which this is not"):
                source._value("x", str(tmp_path / "x.npy"), info)


def test_a_cache_in_a_folder_that_is_relative(two_layers, tmp_path):
    command = [sys.executable, "-m", "burnish", "compile", two_layers, "-o", "m.so", "--dim", "batch=1"]
    subprocess.run(command, env={**os.environ, "BURNISH_CACHE_DIR": "cache"}, cwd=tmp_path, check=True)
    assert (tmp_path / "cache" / "runtime").is_dir() and (tmp_path / "m.so").is_file()


def test_without_arguments_there_is_help(burnish):
    for command in ((), ("records",)):
        said = burnish(*command, code=2).output
        assert said.startswith("Usage: burnish") and "\n  " in said and "error" not in said


@pytest.mark.parametrize("none", ["raise RuntimeError", "return '~/.cache/burnish'"])
def test_users_without_a_home(none):
    command = [sys.executable, "-c", "from burnish.settings import cache_dir; print(cache_dir())"]
    failing = f"import platformdirs\ndef none(*_): {none}\nplatformdirs.user_cache_path = none\n"
    command[2] = failing + command[2]
    environment = {**os.environ, "BURNISH_CACHE_DIR": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "InputError: the user has no home for a cache: set BURNISH_CACHE_DIR to a folder" in done.stderr
    done = subprocess.run(
        command, env=environment | {"BURNISH_CACHE_DIR": "/tmp/c"}, capture_output=True, text=True
    )
    assert done.stdout == "/tmp/c\n"


def test_summary_counts_what_is_not_finite():
    text = run_command.summary(np.array([1.0, np.nan, np.inf, -3.0], np.float32))
    assert "min -3" in text and "max 1" in text and "2 not finite" in text
    assert run_command.summary(np.zeros((0, 2))) == "empty"
    tokens = np.array([50256, 2**62 + 1])
    assert (
        run_command.summary(tokens)
        == f"min 50256  mean {tokens.mean():.4g}  max {2**62 + 1}  [50256 {2**62 + 1}]"
    )


def test_stop_after_prints_the_graph(burnish, two_layers):
    said = burnish("compile", two_layers, "--dim", "batch=2", "--stop-after", "import").stdout
    assert "first: f32[2,5] = Unary(product)" in said
    said = burnish("compile", two_layers, "--dim", "batch=2", "--stop-after", "fuse").stdout
    assert "FusedOp" in said and "matmul_tanh" in said


def test_dump_writes_every_rung(burnish, two_layers, tmp_path):
    burnish("compile", two_layers, "--dim", "batch=2", "-o", tmp_path / "m.so", "--dump", tmp_path / "d")
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert {"00-import.txt", "01-multiply_bytes.txt", "02-fold.txt", "plan.txt", "kernels"} <= names
    kernels = [path.read_text() for path in (tmp_path / "d" / "kernels").iterdir()]
    assert kernels and all("# LLVM IR" in text and "# assembly" in text for text in kernels)


@pytest.mark.parametrize(
    ("level", "present", "absent"),
    [
        (1, "fuse", "kernel "),
        (2, "kernel matmul_tanh", "config"),
        (3, "config", "define i32"),
        (4, "define i32", ""),
    ],
)
def test_debug_ladder(burnish, two_layers, tmp_path, monkeypatch, level, present, absent):
    monkeypatch.setenv("BURNISH_DEBUG", str(level))
    said = burnish("compile", two_layers, "--dim", "batch=2", "-o", tmp_path / "m.so").stderr
    assert present in said
    assert not absent or absent not in said


def test_verify_compares_outputs_and_layers(burnish, two_layers, tmp_path):
    for oracle in ("onnxruntime", "reference"):
        options = ("--dim", "batch=2", "--against", oracle, "--layerwise", "--threads", "1,2")
        said = burnish("verify", two_layers, *options).stdout
        assert "first float32[2,5]" in said and "y float32[2,3] (2 threads)" in said
        assert "same bits when saved, loaded and run again" in said and "ok: " in said
    burnish("verify", two_layers, "--dim", "batch=2", "--random-weights", "--seed", 3)


def test_verify_asks_for_bytes_as_the_model_has_them(burnish, tmp_path):
    """Activations of i8 are kept as u8 where dot products multiply these."""
    rng = np.random.default_rng(0)
    held = {
        "scale": np.float32(0.02),
        "zero": np.int8(0),
        "w": rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
        "w_scale": np.float32(0.01),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["v"]),
        helper.make_node("Conv", ["d", "v"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 16, 16))
    kept = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], kept)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "q.onnx",
    )
    for oracle in ("onnxruntime", "reference"):
        options = ("--layerwise", "--against", oracle, "--threads", 1)
        said = burnish("verify", tmp_path / "q.onnx", *options).stdout
        value = "q int8" if host().fast_dot else "d float32"  # else words are f32 again at once
        assert "ok: " in said and f"{value}[1,8,16,16] (quantise" in said


def test_verify_survives_onnxruntime(error, two_layers, monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "reference", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    message = error("verify", two_layers, "--dim", "batch=2")
    assert "compare with --against reference (killed, as the system does when memory ends)" in message


def test_verify_asks_for_the_values_that_a_module_holds(burnish, error, two_layers, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    value = f"x={tmp_path / 'x.npy'}"
    burnish("compile", two_layers, "-o", tmp_path / "m.so", "--value", value, "--threads", 1)
    said = error("verify", tmp_path / "m.so", "--model", two_layers)
    assert "has a constant for 'x': give it with --value x=" in said
    burnish("verify", tmp_path / "m.so", "--model", two_layers, "--value", value)
    burnish("compile", two_layers, "-o", tmp_path / "n.so", "--dim", "batch=2", "--threads", 1)
    said = error("verify", tmp_path / "n.so", "--model", two_layers, "--dim", "batch=99")
    assert "where batch=99; the shape [2, 4] does not fit" in said


def test_verify_finds_a_module_of_another_model(burnish, error, two_layers, tmp_path):
    path = tmp_path / "m.so"
    burnish("compile", two_layers, "-o", path, "--dim", "batch=1")
    assert "ok: 2 checks" in burnish("verify", path, "--model", two_layers, "--dim", "batch=1").stdout
    assert "give --model" in burnish("verify", path).stdout
    model = onnx.load(two_layers)
    weights = onnx.numpy_helper.to_array(model.graph.initializer[1]) * np.float32(1.01)
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weights, "V"))
    onnx.save(model, tmp_path / "other.onnx")
    message = error("verify", path, "--model", tmp_path / "other.onnx", "--dim", "batch=1")
    assert "2 of 2 checks failed" in message and "WRONG" in message and "expected" in message


def test_what_a_module_cannot_be_asked(burnish, error, two_layers, tmp_path):
    path = tmp_path / "m.so"
    burnish("compile", two_layers, "--dim", "batch=1", "-o", path)
    assert "was not compiled from digits, which has no 'x'" in error("verify", path, "--model", "digits")
    assert "give it with --model" in error("verify", path, "--against", "reference")
    assert "give the model instead" in error("verify", path, "--random-weights")
    assert "leave out --shape and --dim" in error("verify", path, "--dim", "batch=1")
    burnish("compile", "digits", "--dim", "batch=3", "-o", tmp_path / "d.so")
    for against in ((), ("--against", "reference")):
        message = error("verify", tmp_path / "d.so", "--model", "digits", *against)
        assert "f32[1,1,8,8]" in message and "does not fit" in message
    assert "is compiled for its target" in error("run", path, "--target", "cortex-a72")


def test_outputs_whose_names_differ_in_special_characters_get_files_of_their_own(burnish, tmp_path):
    names = ["a/b", "a_b", "a:b"]
    nodes = [helper.make_node(op, ["x"], [n]) for op, n in zip(("Neg", "Abs", "Exp"), names)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in ("x", *names)]
    graph = helper.make_graph(nodes, "special", infos[:1], infos[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    burnish("run", tmp_path / "m.onnx", "--output", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a_b.npy", "a_b_1.npy", "a_b_2.npy"]


def test_names_are_no_markup(burnish, tmp_path):
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 300)) for n in ("x", "y")]
    node = helper.make_node("Softmax", ["x"], ["y"], name="a[/0]:x:")
    graph = helper.make_graph([node], "markup", info[:1], info[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    for command in ("plan", "profile"):
        assert "a[/0]:x:" in burnish(command, tmp_path / "m.onnx", "--threads", 1).stdout


def test_verify_allows_steps_where_a_network_quantises(burnish, tmp_path):
    model = quantised.network(24)
    onnx.save(model, tmp_path / "q.onnx")
    assert "ok: 11 checks" in burnish("verify", tmp_path / "q.onnx", "--threads", "1,2").stdout
    least = least_tolerance(model)
    assert least == 0.05 and least_tolerance(onnx.ModelProto()) == 0
    bytes = np.array([100, 80], np.uint8)
    for dtype, tolerated in ((np.uint8, least), (np.float32, least), (np.int64, 0.0)):
        exact = bytes.astype(dtype)
        off = exact + np.array([1, 0], dtype)
        assert not compare("y", "", off, exact).ok and compare("y", "", exact, exact, least=least).ok
        assert compare("y", "", off, exact, least=least).ok == (tolerated > 0)


def test_profile_shows_kernels_and_writes_a_trace(burnish, tmp_path):
    path = tmp_path / "trace.json"
    said = burnish("profile", "digits", "--threads", 1, "--trace", path, "--sort", "time").stdout
    assert "conv_relu" in said and "GFLOP/s" in said and "one run:" in said
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert any("conv1" in event["args"]["node"] and event["args"]["flops"] > 0 for event in events)
    ends = [event["ts"] + event["dur"] for event in events]
    assert all(b["ts"] == pytest.approx(a) for a, b in zip(ends, events[1:]))


def test_a_model_is_one_whatever_its_name_ends_in(burnish, tmp_path):
    burnish("zoo", "digits", "-o", tmp_path / "m.json")
    assert "output" in burnish("run", tmp_path / "m.json", "--threads", 1).stdout


@pytest.fixture(scope="module")
def measured_digits(tmp_path_factory):
    """Records of what `burnish compile --measure` measured."""
    folder = tmp_path_factory.mktemp("measured")
    options = ("--threads", "1", "--measure", "--records", folder / "r.jsonl", "-o", folder / "m.so")
    done = CliRunner().invoke(cli, ["compile", "digits", *map(str, options)])
    assert done.exit_code == 0, done.output
    return folder / "r.jsonl"


@pytest.mark.parametrize("faster", [True, False])
def test_a_plan_by_what_was_measured_before_says_so(burnish, tmp_path, monkeypatch, measured_digits, faster):
    """What comparing the plans in the network has shown depends on the machine's noise: here it is given."""
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    assert "measured before" not in burnish("plan", "digits", "--threads", 1).stdout
    path = Path(shutil.copy(measured_digits, tmp_path / "records.jsonl"))
    monkeypatch.setattr(MeasuredCosts, "compared", True)
    monkeypatch.setattr(MeasuredCosts, "refuses", lambda self, first, other: not faster)
    said = burnish("plan", "digits", "--threads", 1).stdout
    assert (f"burnish compile digits --threads 1 --records {path} -o MODULE" in said) == faster
    assert ("measured before; the plan by that is no faster in the network" in said) != faster
    monkeypatch.setattr(MeasuredCosts, "refuses", lambda self, first, other: False)
    assert "measured before" not in burnish("plan", "digits", "--threads", 1, "--records", path).stdout


def test_bench_shows_measured_plans_beside_predicted_ones(burnish, tmp_path, measured_digits):
    """What no record tells of is measured."""
    kept, _ = read(measured_digits)
    task = next(r.task for r in kept if r.algorithm != PLAN)
    records = tmp_path / "records.jsonl"
    records.write_text("".join(f"{r.line}\n" for r in kept if r.task != task))
    options = ["--threads", "1", "--rounds", "1", "--against", "none", "--measure", "--records", records]
    out = burnish("bench", "digits", *options).stdout
    assert "burnish-measured" in out
    assert task in {r.task for r in read(records)[0]}


def test_records_are_carried_from_file_to_file(burnish, error, tmp_path, measured_digits):
    mine, other, best = (tmp_path / f"{name}.jsonl" for name in ("mine", "other", "best"))
    shutil.copy(measured_digits, mine)
    measured = len(mine.read_text().splitlines())  # what was disturbed, twice
    kept = read(mine)[0]
    tasks = len({record.task for record in kept})
    kernels = len({record.task for record in kept if record.algorithm != PLAN})  # plans hold for one machine
    listed = burnish("records", "list", "--records", mine).stdout
    assert f"{measured} measurements of {tasks} tasks" in listed and 3 < tasks <= measured
    lines = burnish("records", "top", "-n", "3", "--records", mine).stdout.splitlines()
    assert len(lines) == 3 and all(re.match(r" *[\d.]+ µs ± *\d+%  \w+ x1  \w+  ", line) for line in lines)
    assert f"{measured} added" in burnish("records", "merge", other, mine).stdout
    assert "0 added" in burnish("records", "import", mine, "--records", other).stdout
    assert f"{kernels} records" in burnish("records", "export", best, "--records", other).stdout
    foreign = ("export", tmp_path / "foreign.jsonl", "--target", "cortex-a53", "--records", other)
    assert "0 records" in burnish("records", *foreign).stdout
    assert set(best.read_text().splitlines()) <= set(mine.read_text().splitlines())
    assert "exists; expected a new file" in error("records", "export", best, "--records", other)
    assert "there is no file" in error("records", "top", "--records", tmp_path / "none.jsonl")
    assert burnish("records", "path").stdout.strip().endswith("records.jsonl")


def test_bench_compares_and_writes_all_files(burnish, error, tmp_path):
    files = ("--json", tmp_path / "b.json", "--markdown", tmp_path / "b.md", "--html", tmp_path / "b.html")
    options = ("--rounds", 1, "--threads", 1, "--against", "onnxruntime")
    assert "burnish" in burnish("bench", "digits", *options, *files).stdout
    rows = json.loads((tmp_path / "b.json").read_text())["groups"][0]["rows"]
    assert [row["contestant"] for row in rows] == ["burnish", "onnxruntime"]
    assert rows[0]["reason"] is None and len(rows[0]["seconds"]) == 1
    assert "| burnish | f32 |" in (tmp_path / "b.md").read_text()
    page = (tmp_path / "b.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "digits, 1 thread" in page and "onnxruntime" in page
    assert "no peer 'abacus'" in error("bench", "digits", "--against", "abacus")
    assert "none of the models" in error("bench", "digits", "--tflite", "vgg=x.tflite")


def test_bench_fails_where_our_own_row_does(burnish, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise UnsupportedError("there is no melting")

    monkeypatch.setattr(bench_command, "compile_model", refuse)
    done = burnish("bench", "digits", "--against", "none", "--threads", 1, "--rounds", 1, code=1)
    assert "1 of our own rows failed; burnish: there is no melting" in done.stderr
    assert "there is no melting" in done.stdout


def test_bench_keeps_the_rows_of_networks_before_an_interruption(burnish, monkeypatch, tmp_path):
    def interrupted(session, *arguments, **options):
        if session.network.name == "dqn":
            raise KeyboardInterrupt
        return compare_apart(session, *arguments, **options)

    compare_apart = bench_command.compare_apart
    monkeypatch.setattr(bench_command, "compare_apart", interrupted)
    files = {f"--{kind}": tmp_path / f"rows.{kind}" for kind in ("json", "markdown", "html")}
    options = ("--against", "none", "--threads", 1, "--rounds", 1)
    burnish("bench", "digits", "dqn", *options, *chain.from_iterable(files.items()), code=130)
    for file in files.values():
        assert "digits" in file.read_text() and "dqn" not in file.read_text()


def test_bench_without_a_gpu_says_that_nothing_was_measured(burnish, error, monkeypatch):
    monkeypatch.setattr("burnish.op_tuner.measure.find_cuda_device", lambda: None)
    options = ("--target", "cuda-sm90", "--batch", "1,16", "--tune", 2, "--rounds", 1)
    out = burnish("bench", "digits", *options).stdout
    assert "digits, GPU" in out and "digits batch 16, GPU" in out
    assert out.count("not measured: no GPU here") == 2 * 10
    assert "torch-max-autotune-tf32" in out and "burnish-tuned" in out
    options = ("--target", "cuda-sm90", "--batch", 1, "--against")
    assert "no peer 'ncnn' on an NVIDIA GPU" in error("bench", "digits", *options, "ncnn")
    assert "--batch is for networks of the zoo" in error("bench", "some.onnx", *options, "torch")


def test_bench_counts_for_a_target_without_a_board(burnish, error, require_tool, tmp_path, monkeypatch):
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        require_tool(tool)
    monkeypatch.delenv("BURNISH_EMULATOR_ROOT", raising=False)
    options = ("--target", "cortex-a53", "--against")
    files = ("--json", tmp_path / "b.json", "--markdown", tmp_path / "b.md")
    out = burnish("bench", "digits", *options, "none", "--rounds", 1, *files).stdout
    assert "EMULATED cortex-a53" in out and "no peer to compare with: digits" in out
    assert json.loads((tmp_path / "b.json").read_text())["groups"][0]["rows"][0]["process"] > 0
    assert "instructions on an emulated cortex-a53" in (tmp_path / "b.md").read_text()
    assert "give --root" in error("bench", "digits", *options, "onnxruntime")
    assert "tune before" in error("bench", "digits", *options, "none", "--tune", 1)
    assert "--root is for targets" in error("bench", "digits", "--root", tmp_path)


RUNG_TITLES = (
    "ONNX node", "graph after import", "graph after the pass fuse", "fused operator", "tensor expression",
    "kernel task and the chosen config", "naive loop program", "scheduled loop program",
    "lowered loop program", "LLVM IR", "assembly",
)  # fmt: skip


@pytest.mark.parametrize("name", ["softmax", "conv"])
def test_trace_shows_every_rung_in_order(burnish, name):
    said = burnish("trace", "--op", name).stdout
    places = [said.find(f"── {title}") for title in RUNG_TITLES]
    assert -1 not in places and places == sorted(places)
    assert "config     " in said and "define i32 @" in said and "ret" in said


def test_trace_of_one_node_of_a_model(burnish, error, two_layers):
    options = ("--dim", "batch=2", "--stop-after", "task")
    said = burnish("trace", two_layers, "--node", "first", *options).stdout
    assert "ONNX node (Tanh)" in said and "matmul_tanh" in said and "LLVM IR" not in said
    assert "has 'multiply', 'squash'" in error("trace", two_layers, "--node", "melt", *options)
    assert "expected one of softmax" in error("trace", "--op", "melt")
    assert "give either a model" in error("trace")


def test_zoo_lists_and_writes(burnish, error, tmp_path, monkeypatch):
    assert {"digits", "resnet50", "dqn"} <= set(burnish("zoo").stdout.split())
    path = tmp_path / "d.onnx"
    burnish("zoo", "digits", "-o", path, "--batch", 3)
    onnx.checker.check_model(onnx.load(path))
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert "no network named" in error("zoo", "alexnet", "-o", tmp_path / "a.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["d.onnx"]
    monkeypatch.chdir(tmp_path)
    burnish("zoo", "digits")
    burnish("zoo", "digits")
    path.rename("digits.onnx")
    assert "digits.onnx is there, and is another model" in error("zoo", "digits")
    assert onnx.load("digits.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert "of one network" in error("zoo", "--batch", 2)
    written = []
    for n, more in enumerate(((), ("--seed", 1), ("--image", 92))):
        burnish("zoo", "dqn", "-o", tmp_path / f"{n}.onnx", *more)
        written.append((tmp_path / f"{n}.onnx").read_bytes())
    assert len(set(written)) == 3
    dims = onnx.load_from_string(written[2]).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims][2:] == [92, 92]


def test_a_name_of_the_zoo_is_no_file(burnish, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").write_text("an application of this name")
    assert "logits" in burnish("run", "digits").stdout
    assert "not an ONNX model" in error("run", "./digits")


def test_targets(burnish, error):
    assert "x86-64-v3" in burnish("targets").stdout
    assert "vector_bits: 512" in burnish("targets", "x86-64-v4").stdout
    assert "unknown target" in error("targets", "z80")


def test_cache_counts_and_deletes_only_its_own_files(burnish, tmp_path, monkeypatch, two_layers):
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    assert burnish("cache", "--path").stdout.strip() == str(tmp_path)
    assert "kernels: 0" in burnish("cache").stdout
    burnish("compile", two_layers, "--dim", "batch=2", "-o", tmp_path / "m.so")
    kernels = list((tmp_path / "kernels").iterdir())
    (tmp_path / "kernels" / "notes.txt").write_text("mine")
    (tmp_path / "kernels" / f".{kernels[0].name[:60]}.abc_1d2e").write_text("of a process that was killed")
    assert f"kernels: {len(kernels) + 1}, " in burnish("cache").stdout
    assert f"deleted kernels: {len(kernels) + 1}, " in burnish("cache", "--clear").stdout
    assert [p.name for p in (tmp_path / "kernels").iterdir()] == ["notes.txt"]
    assert (tmp_path / "m.so").exists()


def test_settings_lists_every_knob(burnish, monkeypatch):
    monkeypatch.setenv("BURNISH_DEBUG", "0")
    said = burnish("settings").stdout
    assert "BURNISH_DEBUG=0\n" in said and "BURNISH_CACHE_DIR=" in said


def test_python_dash_m_burnish():
    done = subprocess.run(
        [sys.executable, "-m", "burnish", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("burnish ")


def test_inference_session_has_the_interface_of_onnxruntime(two_layers):
    ort = require_module("onnxruntime")
    ours, theirs = (module(str(two_layers)) for module in (InferenceSession, ort.InferenceSession))
    for a, b in zip([*ours.get_inputs(), *ours.get_outputs()], [*theirs.get_inputs(), *theirs.get_outputs()]):
        assert (a.name, a.type, a.shape) == (b.name, b.type, b.shape)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 4), np.float32)
        np.testing.assert_allclose(ours.run(["y"], {"x": x})[0], theirs.run(None, {"x": x})[0], atol=1e-6)
    with pytest.raises(InputError, match="there is no output 'z'"):
        ours.run(["z"], {"x": x})
    with pytest.raises(InputError, match="there is no input 'z'"):
        ours.run(None, {"z": x})
    with pytest.raises(InputError, match="only CPUExecutionProvider"):
        InferenceSession(str(two_layers), providers=["CUDAExecutionProvider"])
    listed = {"x": [[1, 2, 3, 4.5]]}
    np.testing.assert_allclose(ours.run(None, listed)[0], theirs.run(None, listed)[0], atol=1e-6)
    with pytest.raises(InputError, match="input 'x': expected float32, found a list"):
        ours.run(None, {"x": [[1, 2], [3]]})
    InferenceSession(str(two_layers), providers=["CPUExecutionProvider"], provider_options=[{}])
    said, expected = ours.get_modelmeta(), theirs.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(said, name) == getattr(expected, name), name


def test_inference_session_tells_of_outputs_what_the_file_does_not(tmp_path):
    ort = require_module("onnxruntime")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("ArgMax", ["x"], ["y"], axis=1)], "g", [x], [])
    graph.output.add().name = "y"
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    (ours,), (theirs,) = (
        module(str(tmp_path / "m.onnx")).get_outputs() for module in (InferenceSession, ort.InferenceSession)
    )
    assert (
        (ours.name, ours.type, ours.shape)
        == (theirs.name, theirs.type, theirs.shape)
        == ("y", "tensor(int64)", [2, 1])
    )


def test_inference_session_of_bytes_and_of_modules(two_layers, tmp_path):
    class Options:
        intra_op_num_threads = 1

    options, x = Options(), np.ones((2, 4), np.float32)
    session = InferenceSession(two_layers.read_bytes(), options)
    assert session.get_providers() == ["CPUExecutionProvider"] and session.get_session_options() is options
    (y,) = session.run(["y"], {"x": x})
    module = compile(two_layers, dims={"batch": 2}, threads=1)
    module.save(tmp_path / "m.so")
    loaded = InferenceSession(tmp_path / "m.so", options)
    assert [(a.name, a.type, a.shape) for a in loaded.get_inputs()] == [("x", "tensor(float)", [2, 4])]
    np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], y)
    np.testing.assert_array_equal(loaded.run(None, {"x": x.tolist()})[0], y)


@pytest.mark.parametrize("shape", [[2], ["n"]])
def test_inference_session_of_unknown_elements(shape):
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    info.type.tensor_type.elem_type = 999
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(UnsupportedError, match="'x' has the element type number 999"):
        InferenceSession(model.SerializeToString()).run(None, {"x": np.ones(2, np.float32)})


def test_a_module_is_saved_once(two_layers, tmp_path):
    module = compile(two_layers, dims={"batch": 2}, threads=1)
    with pytest.raises(InputError, match=r"ends in \.so or \.a"):
        module.save(tmp_path / "m.dll")
    module.save(tmp_path / "m.so")
    with pytest.raises(InputError, match="cannot be saved again"):
        load(tmp_path / "m.so").save(tmp_path / "again.so")
