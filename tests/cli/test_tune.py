"""`burnish tune` and `burnish.tune` on the digits network, and compiling with what they found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import burnish as package
import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.commands.options import parse_duration
from burnish.errors import InputError
from burnish.kernel_cache import KernelStore
from burnish.models import zoo
from burnish.op_tuner import records as records_module
from burnish.op_tuner.records import Records, read
from onnx import TensorProto, helper

from ..conftest import require_module

pytestmark = pytest.mark.usefixtures("nothing_shipped")
FAST = ("--threads", 1, "--strategy", "random")
ONE = {"threads": 1, "strategy": "random"}
X = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)


@pytest.fixture
def answers(monkeypatch):
    """The recorded answers that a compilation takes: {} where it takes the default rule."""
    taken = {}

    class Store(KernelStore):
        def build_all(self, tasks, pick_config, progress=None):
            taken.clear()
            taken.update({t.digest: getattr(pick_config(t), "answers", {}) for t in tasks.values()})
            return super().build_all(tasks, pick_config, progress)

    monkeypatch.setattr(pipeline, "KernelStore", Store)
    return taken


@pytest.fixture(scope="module")
def nothing_shipped(tmp_path_factory):
    """Whatever records ship: what is taken here is what was found here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_module, "SHIPPED", tmp_path_factory.mktemp("shipped"))
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, nothing_shipped):
    path = tmp_path_factory.mktemp("tuned") / "records.jsonl"
    return package.tune(zoo.build("digits"), trials=12, records=path, **ONE)


def test_tune(tuned):
    assert tuned.measured == 12 and sum(k.trials for k in tuned.kernels) >= 6 and not tuned.interrupted
    assert len(read(tuned.records)[0]) >= 12
    assert 0 < tuned.after <= tuned.before < 1
    for kernel in tuned.kernels:
        assert kernel.count + kernel.predicted_count >= 1 <= kernel.trials
        assert 0 < kernel.after <= kernel.before


def test_compile_takes_the_fastest_and_computes_the_same(tuned, answers):
    module = package.compile(zoo.build("digits"), threads=1, records=tuned.records)
    found = {kernel.task: kernel.config for kernel in tuned.kernels if kernel.count}
    assert answers == {digest: dict(found.get(digest, {})) for digest in answers}
    assert set(found) <= set(answers) and len(Records(tuned.records, shipped=False)) >= 12
    plain = package.compile(zoo.build("digits"), threads=1)
    assert not any(answers.values())
    (name,) = (i.name for i in module.inputs)
    for a, b in zip(module.run({name: X}).values(), plain.run({name: X}).values()):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # of whichever algorithms are the fastest


def test_the_users_own_records_are_taken_only_when_measuring(tmp_path, monkeypatch, answers, tuned):
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    (tmp_path / "records.jsonl").write_bytes(tuned.records.read_bytes())
    package.compile(zoo.build("digits"), threads=1)
    assert not any(answers.values())
    assert pipeline.records_path(None, True) == tmp_path / "records.jsonl"
    assert pipeline.records_path(None, False) is None


def test_the_command(burnish, tmp_path):
    """Twice: the second goes on where the first stood. What a changed plan brings is measured beside that."""
    records = tmp_path / "r.jsonl"
    first = burnish("tune", "digits", "--trials", 6, "--records", records, *FAST)
    assert "6 configs measured in" in first.stdout and "speed-up" in first.stdout
    assert f"burnish compile digits --threads 1 --records {records}" in first.stdout
    again = burnish("tune", "digits", "--trials", 3, "--records", records, "--strategy", "genetic", *FAST[:2])
    assert "3 configs measured in" in again.stdout
    alone = [r for r in read(records)[0] if not r.network]
    assert len({tuple(r.config.items()) + (r.task,) for r in alone}) >= 9
    out = tmp_path / "digits.so"
    burnish("compile", "digits", "--threads", 1, "--records", records, "-o", out)
    assert out.exists()


def test_the_learned_model(burnish, tmp_path):
    """With the page of it."""
    require_module("xgboost")
    options = ("--trials", 8, "--records", tmp_path / "r.jsonl", "--threads", 1, "--objective", "regression")
    page = tmp_path / "page.html"
    assert "8 configs measured" in burnish("tune", "digits", "--html", page, *options).stdout
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_without_xgboost(error, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    message = error("tune", "digits", "--trials", 1, "--records", tmp_path / "r.jsonl")
    assert "needs xgboost" in message and "burnish[tune]" in message


def test_compile_tunes_first(burnish, tmp_path):
    records, out = tmp_path / "r.jsonl", tmp_path / "digits.so"
    done = burnish("compile", "digits", "--tune", 6, "--records", records, "--threads", 1, "-o", out)
    assert "tuned digits for 1 thread in" in done.stderr and "configs from records" in done.stdout
    assert len({(r.task, *r.config.items()) for r in read(records)[0] if not r.network}) >= 6


def test_a_budget_is_said(burnish, tmp_path):
    """What it takes is said beforehand."""
    options = ("--budget", "6s", "--records", tmp_path / "r.jsonl", *FAST)
    found = burnish("tune", "digits", *options)
    assert "about 6 s in all" in found.stderr and "as with other networks" in found.stderr
    assert "configs measured in" in found.stdout


def test_bench_says_when_not_all_was_measured(burnish, tmp_path):
    """A network that cannot be tuned is no end of it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"], name="odd")], "g", [x], [])
    graph.output.add().name = "y"
    onnx.save(helper.make_model(graph), tmp_path / "odd.onnx")
    options = ("--against", "none", "--rounds", 1, "--threads", 1, "--records", tmp_path / "r.jsonl")
    files = ("--json", tmp_path / "b.json")
    done = burnish("bench", tmp_path / "odd.onnx", "digits", *options, "--tune", 1, *files, code=1)
    assert "tuned digits for 1 thread" in done.stderr
    assert "not all default configs were measured (1 " in done.stderr
    assert "rows failed" in done.stderr and "'odd'" in done.stdout and "digits" in done.stdout
    (row,) = (r for r in json.loads(files[1].read_text())["groups"][1]["rows"] if r["tuning_seconds"])
    assert row["contestant"] == "burnish-tuned"
    assert 0 < row["tuning_overhead_seconds"] < row["tuning_seconds"]


def heed_interrupts():
    """Shells start jobs in the background with SIGINT ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c(tmp_path):
    """Everything measured is kept, the table is printed, and no process is left."""
    records = tmp_path / "r.jsonl"
    command = [
        sys.executable,
        "-m",
        "burnish",
        "tune",
        "digits",
        "--budget",
        "10m",
        "--records",
        str(records),
    ]
    child = subprocess.Popen(
        [*command, *map(str, FAST)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not records.exists() or len(read(records)[0]) < 8):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    try:
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "interrupted; " in out and "network" in out and "Traceback" not in err
    kept = {(r.task, *r.config.items()) for r in read(records)[0]}  # a default may be measured twice
    assert f"{len(kept)} configs measured" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tune", "digits", "--budget", "soon"), "expected a time such as 90s, 10m or 1.5h"),
        (("tune", "digits", "--trials", 1, "--records", "r.txt"), "jsonl"),
        (("tune", "digits", "--target", "aarch64-v9"), "aarch64-v9"),
        (("compile", "digits", "--records", "none.jsonl", "-o", "d.so"), "there is no file 'none.jsonl'"),
        (("plan", "digits", "--records", "none.jsonl"), "there is no file 'none.jsonl'"),
        (("tune", "digits", "--records", "r.jsonl", "--html", "r.jsonl"), "r.jsonl is named for two things"),
        (("plan", "m.onnx", "--html", "m.onnx"), "m.onnx is named for two things"),
        (("plan", "digits", "--records", "r.jsonl", "--html", "r.jsonl"), "r.jsonl is named for two things"),
        (("profile", "m.so", "--trace", "m.so"), "m.so is named for two things"),
        (("bench", "digits", "m.onnx", "--json", "m.onnx"), "m.onnx is named for two things"),
        (("pretrain", "digits", "-o", "r.jsonl", "--records", "r.jsonl"), "r.jsonl is named for two things"),
        (("tune", "digits", "--workers", "nowhere"), "'nowhere': expected tcp://HOST:PORT"),
        (("worker", "tcp://127.0.0.1:notaport"), "expected tcp://HOST:PORT"),
        (("worker", "--listen", 0, "--cores", "0-9999999999"), "expected CPUs such as 0-3,8"),
        (("worker", "--listen", 0, "--cores", "0,5-2"), "5-2 ends before it begins"),
    ],
)
def test_errors(error, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert says in error(*arguments)


def test_times():
    texts = {"90s": 90, "10m": 600, "1.5h": 5400, "7": 7, "2 m": 120}
    assert {text: parse_duration(None, None, text) for text in texts} == texts
    assert parse_duration(None, None, None) is None
    for text in ("", "0", "-1s", "1d", "m"):
        with pytest.raises(InputError, match="--budget"):
            parse_duration(None, None, text)
