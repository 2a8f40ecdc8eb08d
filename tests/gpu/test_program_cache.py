"""Programs that a driver has built, on disk: used by later processes, ignored where they are not whole."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import burnish
import numpy as np
import pytest
from burnish.runtime.build import checksum
from onnx import TensorProto, helper

X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
HEADER = 56  # bytes: magic, key, size, checksum


@pytest.fixture(scope="module")
def saved(opencl, tmp_path_factory) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("module") / "relu.so"
    burnish.compile(model, target="opencl").save(path)
    return path


@pytest.fixture
def run(saved, tmp_path, monkeypatch):
    """Opens and runs the module, with a cache in `tmp_path`; gives the entries that are there then."""
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BURNISH_OPENCL_CACHE", "1")

    def run() -> list[Path]:
        module = (
            tmp_path / f"{len(list(tmp_path.glob('*.so')))}.so"
        )  # what is open already is not built again
        shutil.copy(saved, module)
        result = burnish.load(module).run({"x": X})["y"]
        np.testing.assert_array_equal(result, np.maximum(X, 0))
        folder = tmp_path / "programs"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    return run


def damaged(data: bytes, kind: str) -> bytes:
    """Cut short, with other bytes, of another key, or whole but nothing that the driver takes."""
    if kind in ("empty", "short"):
        return data[: len(data) // 2] if kind == "short" else b""
    if kind == "refused":
        garbage = bytes(range(256))
        return data[:40] + struct.pack("<QQ", len(garbage), checksum(garbage)) + garbage
    at = {"magic": 0, "key": 8, "size": 40, "data": HEADER + 100}[kind]
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def test_what_is_whole_serves_later_processes(run):
    (entry,) = run()
    before = entry.stat()
    assert len(entry.name) == 64 and before.st_size > HEADER
    assert run() == [entry]
    assert (entry.stat().st_mtime_ns, entry.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("kind", ["empty", "short", "magic", "key", "size", "data", "refused"])
def test_what_is_damaged_is_built_and_kept_again(run, kind):
    (entry,) = run()
    good = entry.read_bytes()
    entry.write_bytes(damaged(good, kind))
    before = entry.stat().st_ino
    assert run() == [entry] and entry.stat().st_ino != before
    assert entry.read_bytes()[:40] == good[:40]


def test_nothing_is_kept_where_that_is_not_wanted_or_cannot_be(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_OPENCL_CACHE", "0")
    assert run() == []
    monkeypatch.setenv("BURNISH_OPENCL_CACHE", "1")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert run() == []
