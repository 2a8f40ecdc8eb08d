"""Every mistake is one line and an exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from burnish import cli as cli_module
from burnish.commands import compile as compile_command


def test_help_names_every_command_without_loading_any(burnish):
    code = (
        "import sys; from burnish.cli import cli; from click.testing import CliRunner; "
        "print(CliRunner().invoke(cli, ['--help']).output); "
        "print('loaded', [m for m in ('onnx', 'llvmlite', 'numpy') if m in sys.modules])"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in text for name in cli_module.COMMANDS)
    assert "loaded []" in text


@pytest.mark.parametrize("name", cli_module.COMMANDS)
def test_every_command_has_help(burnish, name):
    assert f"Usage: burnish {name}" in burnish(name, "--help").output


def test_wrong_command_lines_exit_with_2(error):
    assert "No such command 'melt'" in error("melt", code=2)
    assert "--frobnicate" in error("zoo", "--frobnicate", code=2)
    assert "See: burnish compile --help" in error("compile", code=2)
    assert "Missing option '-o'" in error("pretrain", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.onnx", "-o", "m.so"], "there is no file 'nowhere.onnx'"),
        (["digits"], "give a file to write with -o"),
        (["digits", "-o", "m.dll"], "m.dll: the name must end in .so or .a"),
        (["digits", "-o", "open.a", "--tune", "5"], "the runtime has a burnish_open of its own"),
        (["digits", "-o", "m.so", "--tune", "5", "--measure", "--target", "cortex-a72"], "does not run on"),
        (
            ["c3", "-o", "m.so", "--tune", "5", "--weights", "compact", "--target", "opencl"],
            "are packed when",
        ),
        (["digits", "-o", "missing/m.so"], "there is no folder missing"),
        (["digits", "-o", "m.so", "--target", "z80"], "unknown target 'z80'"),
        (["digits", "-o", "m.so", "--shape", "images"], "expected NAME:SIZExSIZE"),
        (["digits", "-o", "m.so", "--dim", "batch=many"], "expected NAME=SIZE"),
        (["c3", "-o", "m.so", "--dim", "batch=2"], "the size 'batch' is given"),
        (["digits", "-o", "m.so", "--shape", "images:2x1x8x8"], "does not fit"),
        (["digits", "--stop-after", "lunch"], "expected one of import, multiply_bytes, fold"),
        (
            ["digits", "--stop-after", "fold", "--records", "r.jsonl"],
            "leave out --measure, --tune, --budget, --records",
        ),
        (["digits", "-o", "m.so", "--dim", f"batch={'9' * 5000}"], "expected NAME=SIZE"),
        (["digits", "-o", "m.so", "--dim", "batch=2", "--dim", "batch=3"], "--dim gives 'batch' twice"),
        (["digits", "-o", "m.so", "--memory-limit", f"{'9' * 400}GB"], "expected a size such as 64MB"),
    ],
)
def test_compile_says_what_is_wrong_and_writes_nothing(error, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in error("compile", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["bench", "verify"])
def test_more_threads_than_a_context_takes(error, command):
    against = ("--against", "none") if command == "bench" else ()
    assert "expected numbers from 1 to 1024" in error(command, "digits", "--threads", "100000", *against)


def test_what_a_terminal_cannot_show_is_no_error():
    done = subprocess.run(
        [sys.executable, "-m", "burnish", "plan", "digits", "--target", "x86-64-v3"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "predicted ?s" in done.stdout


def test_a_folder_is_no_output_and_the_check_comes_before_the_work(error, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_command, "open_module", lambda *a, **k: pytest.fail("compiled first"))
    (tmp_path / "m.so").mkdir()
    assert "it is a folder" in error("compile", "digits", "-o", tmp_path / "m.so")


def test_broken_models_are_named(error, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x08\x07garbage")
    for arguments in (["compile", path, "-o", tmp_path / "m.so"], ["verify", path], ["bench", path]):
        assert "broken.onnx" in error(*arguments)
    assert not (tmp_path / "m.so").exists()
    (tmp_path / "empty.onnx").touch()
    assert "empty.onnx' is empty" in error("verify", tmp_path / "empty.onnx")
    (tmp_path / "broken.so").write_bytes(b"not a module at all")
    assert "broken.so" in error("run", tmp_path / "broken.so")
    (tmp_path / "broken.a").write_bytes(b"!<arch>\n")
    assert "is an archive to link" in error("run", tmp_path / "broken.a")


def test_an_internal_error_is_one_line_and_a_traceback_only_if_asked_for(error, burnish, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError("2 / 0")

    monkeypatch.setattr(compile_command, "find_source", fail)
    monkeypatch.delenv("BURNISH_DEBUG", raising=False)
    message = error("compile", "digits", "-o", "m.so")
    assert "internal error: ZeroDivisionError: 2 / 0" in message and "please report it" in message
    monkeypatch.setenv("BURNISH_DEBUG", "1")
    code = "import burnish.commands.compile as c, burnish.cli; c.find_source = None; burnish.cli.main()"
    command = [sys.executable, "-c", code, "compile", "digits", "-o", "m.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("burnish: error: internal error: TypeError")


def test_debug_level_must_be_a_number(error, monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_DEBUG", "loud")
    assert "expected a number from 0 to 4" in error("compile", "digits", "-o", tmp_path / "m.so")


def test_ctrl_c_ends_with_130_and_one_line(tmp_path):
    environment = {**os.environ, "BURNISH_DEBUG": "1"}
    command = [sys.executable, "-m", "burnish", "compile", "resnet18", "--no-cache", "-o", "m.so"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("import ")  # the first pass is done, work goes on
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "burnish: error: interrupted"
    assert list(tmp_path.iterdir()) == []
