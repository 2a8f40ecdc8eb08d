"""benchmarks/published.py takes networks out of packages, verifies and times them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import onnx

from .networks import relu
from .scripts import script

published = script("published")


def test_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    rows = [{"contestant": "burnish", "reason": "no memory", "speed": None}]

    def burnish(command, *arguments):
        if command == "bench":
            group = {"threads": 1, "checked": True, "rows": rows}
            Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps({"groups": [group]}))
        return "ok: 2 checks" if command == "verify" else "error: killed"

    monkeypatch.setattr(published, "burnish", burnish)
    monkeypatch.setattr(published, "fetch", lambda *_: tmp_path / "relu.onnx")
    monkeypatch.setattr(
        published, "NETWORKS", (published.Published("relu", "some-models==1.0", "relu.onnx"),)
    )
    assert published.main(["--threads", "1, 2"]) == 1
    one, two = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| relu")]
    assert "no memory; ok: 2 checks" in one and two.startswith("| relu | 2 | error: killed |")


def test_a_package_that_pip_cannot_get_is_a_row(tmp_path, monkeypatch, capsys):
    with zipfile.ZipFile(tmp_path / "some_models-1.0-py3-none-any.whl", "w"):
        pass
    networks = [("relu", "some-models==1.0"), ("other", "no-such-package-of-models==0.0")]
    found = tuple(published.Published(name, package, f"{name}.onnx") for name, package in networks)
    monkeypatch.setattr(published, "NETWORKS", found)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert published.main(["--wheels", str(tmp_path)]) == 1
    empty, absent = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert "| relu | – | some-models==1.0 has no relu.onnx |" in empty
    assert absent.startswith("| other | – |") and "exit status" in absent


def test_a_row_for_each_network(tmp_path, monkeypatch, capsys):
    with zipfile.ZipFile(tmp_path / "some_models-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_models/data/relu.onnx", relu().SerializeToString())
        broken = relu()
        broken.graph.node[0].op_type = "Frobnicate"
        wheel.writestr("some_models/data/broken.onnx", broken.SerializeToString())
    networks = tuple(
        published.Published(name, "some-models==1.0", f"{name}.onnx") for name in ("relu", "broken", "other")
    )
    monkeypatch.setattr(published, "NETWORKS", networks)
    given = ["relu", "broken", "--rounds", "1", "--wheels", str(tmp_path)]
    assert published.main(given) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    right, wrong = (line.strip("| ").split(" | ") for line in rows)
    assert right[:2] == ["relu", "1"] and float(right[2].strip("*")) > 0 and right[-1] == "ok: 2 checks"
    assert wrong[0] == "broken" and "Frobnicate" in wrong[-1]
    assert onnx.load(tmp_path / "relu.onnx") == relu()
