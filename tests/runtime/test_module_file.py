"""Module files: linking, opening, and what becomes of damaged ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from burnish.compiler.ir.plan import encode
from burnish.errors import InputError, InternalError, ToolError, UnsupportedError
from burnish.runtime import build
from burnish.runtime.binding import open_module
from burnish.runtime.build import link_module

from .conftest import WEIGHTS, chain_meaning, chain_plan, some_rows

API_MAGIC = 0x48534E52  # BURNISH_API_MAGIC in burnish.h

ENDS = """
import atexit, sys, threading
held = []
atexit.register(lambda: held and held[0].output("y").sum())  # runs last
from burnish.runtime.binding import open_module
held.append(open_module(sys.argv[1]).context(2))
other = open_module(sys.argv[1]).context(2)
begun = threading.Event()

def work():
    while True:
        other.run()
        begun.set()

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def link(kernels, out: Path, kind: str = "so", features: tuple[str, ...] = ()) -> Path:
    plan = chain_plan(features)
    link_module([kernels.object], encode(plan), WEIGHTS.tobytes(), plan.kernels, out, kind)
    return out


@pytest.fixture(scope="module")
def module_file(kernels, tmp_path_factory) -> Path:
    return link(kernels, tmp_path_factory.mktemp("module") / "chain.so")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_runs_as_in_memory(kernels, module_file, threads):
    module, x = open_module(module_file, verify_digest=True), some_rows()
    np.testing.assert_array_equal(module.run({"x": x}, threads)["y"], chain_meaning(x))
    in_memory = kernels.module(chain_plan(), WEIGHTS)
    assert (module.name, module.inputs, module.outputs, module.steps) == (
        *(in_memory.name, in_memory.inputs, in_memory.outputs),
        in_memory.steps,
    )


def test_same_input_same_bytes(kernels, module_file, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    other = link(kernels, tmp_path / "elsewhere" / "other.so")
    assert other.read_bytes() == module_file.read_bytes()
    first, second = (link(kernels, tmp_path / d / "chain.a", "a") for d in (".", "elsewhere"))
    assert first.read_bytes() == second.read_bytes()
    for path in (other, first):
        assert str(tmp_path).encode() not in path.read_bytes()
        assert b"burnish-" not in path.read_bytes()


def test_weights_from_a_file(kernels, module_file, tmp_path):
    plan, weights = chain_plan(), tmp_path / "weights"
    weights.write_bytes(WEIGHTS.tobytes())
    out = tmp_path / "m.so"
    link_module([kernels.object], encode(plan), weights, plan.kernels, out)
    assert out.read_bytes() == module_file.read_bytes()
    assert os.stat(out).st_mode & 0o777 == 0o755 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_exports_one_symbol(module_file, require_tool):
    nm = [require_tool("nm"), "-D", "--defined-only", module_file]
    lines = subprocess.run(nm, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["burnish_module"]


def test_needs_only_the_system(module_file, require_tool):
    command = [require_tool("readelf"), "-d", module_file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].split(".so")[0] for line in text.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc", "libm", "libpthread", "ld-linux-x86-64"}


def test_runtime_is_at_most_100_kb(require_tool):
    command = [require_tool("size"), "-t", *build.runtime_objects()]
    total = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert int(total.split()[3]) <= 100 * 1024


def damaged(module_file: Path, tmp_path: Path, change) -> Path:
    data = bytearray(module_file.read_bytes())
    path = tmp_path / "damaged.so"
    changed = change(data)
    path.write_bytes(data if changed is None else changed)
    return path


def test_any_flipped_byte_is_found(module_file, tmp_path):
    data = module_file.read_bytes()
    positions = [*range(0, len(data), 331), *range(len(data) - 512, len(data), 13), len(data) - 1]
    path = tmp_path / "damaged.so"
    for position in positions:
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=r"damaged\.so: "):
            open_module(path)


@pytest.mark.parametrize("keep", [0, 1, 511, 512, 4096, -513, -512, -16, -1])
def test_a_file_cut_short_is_found(module_file, tmp_path, keep):
    with pytest.raises(InputError, match="not a Burnish module"):
        open_module(damaged(module_file, tmp_path, lambda data: data[:keep]))


def test_appended_bytes_are_found(module_file, tmp_path):
    with pytest.raises(InputError, match="not a Burnish module"):
        open_module(damaged(module_file, tmp_path, lambda data: data + b"x"))
    with pytest.raises(InputError, match="bytes, expected"):
        open_module(damaged(module_file, tmp_path, lambda data: b"x" + data))


def reseal(data: bytearray) -> None:
    """Corrects the fast checksum of a changed file."""
    data[-16:-8] = struct.pack("<Q", build.checksum(bytes(data[:-16])))


def test_the_digest_finds_what_a_forged_checksum_hides(module_file, tmp_path):
    def forge(data: bytearray) -> None:
        at = data.index(WEIGHTS.tobytes())
        data[at] ^= 1
        reseal(data)

    path = damaged(module_file, tmp_path, forge)
    open_module(path)
    with pytest.raises(InputError, match="SHA-256"):
        open_module(path, verify_digest=True)


def test_another_format_version_is_named(module_file, tmp_path):
    def renumber(data: bytearray) -> None:
        data[-40:-36] = struct.pack("<I", 99)
        reseal(data)

    with pytest.raises(InputError, match="has module format 99, this opener reads 1"):
        open_module(damaged(module_file, tmp_path, renumber))


def test_a_module_of_a_runtime_that_knew_less_is_named(module_file, tmp_path):
    """Its table is shorter: later versions append to it."""

    def shorten(data: bytearray) -> None:
        begin = data.index(struct.pack("<II", API_MAGIC, 1))
        size = struct.unpack_from("<Q", data, begin + 8)[0]
        struct.pack_into("<Q", data, begin + 8, size - 8)
        reseal(data)

    with pytest.raises(InputError, match=r"made by another version of Burnish: .* compile the model again"):
        open_module(damaged(module_file, tmp_path, shorten))


def test_the_interpreter_may_end_while_contexts_are_in_use(module_file):
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", ENDS, module_file], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_is_no_module(tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(InputError, match="not a Burnish module"):
        open_module(tmp_path / "pipe.so")


@pytest.mark.parametrize("name", ["run", "plan_data"])
def test_an_archive_whose_name_the_runtime_has(kernels, tmp_path, name):
    with pytest.raises(InputError, match=rf"the runtime has a burnish_{name} of its own; choose another"):
        link(kernels, tmp_path / f"{name}.a", "a")


def test_an_archive_of_the_name_in_the_headers_example(kernels, tmp_path):
    assert "burnish_resnet18" in (build.include_dir() / "burnish.h").read_text()
    link(kernels, tmp_path / "resnet18.a", "a")
    assert "burnish_resnet18;" in (tmp_path / "resnet18.h").read_text()


@pytest.mark.parametrize("folder", [False, True])
def test_an_archive_replaces_no_header_of_somebody_elses(kernels, tmp_path, folder):
    header = tmp_path / "net.h"
    header.mkdir() if folder else header.write_text("mine")
    with pytest.raises(InputError, match=r"net\.h is no header of a module, and would be replaced"):
        link(kernels, tmp_path / "net.a", "a")
    assert not (tmp_path / "net.a").exists() and (folder or header.read_text() == "mine")


def test_the_loader_opens_no_other_file(kernels, tmp_path):
    """$ORIGIN is a folder to it."""
    (tmp_path / "$ORIGIN").mkdir()
    path = link(kernels, tmp_path / "m.so")
    with pytest.raises(InputError, match=r"cannot load: the system's loader would put something"):
        open_module(path.rename(tmp_path / "$ORIGIN" / "m.so"))
    assert open_module(Path(shutil.copy(tmp_path / "$ORIGIN" / "m.so", tmp_path / "a$b.so"))).inputs


def test_a_missing_cpu_feature_is_named_before_loading(kernels, tmp_path):
    path = link(kernels, tmp_path / "m.so", features=("sse2", "avx9000"))
    with pytest.raises(InputError, match="compiled for x86-64, but this CPU lacks avx9000"):
        open_module(path)


def test_a_replaced_file_is_opened_anew_and_the_old_module_runs_on(kernels, tmp_path):
    plan, path, x = chain_plan(), tmp_path / "m.so", some_rows()
    changed = WEIGHTS * 2
    modules = []
    for weights in (WEIGHTS, changed, WEIGHTS):
        link_module([kernels.object], encode(plan), weights.tobytes(), plan.kernels, path)
        modules.append(open_module(path))
    first, second, third = (module.run({"x": x})["y"] for module in modules)
    np.testing.assert_array_equal(first, chain_meaning(x))
    np.testing.assert_array_equal(third, first)
    assert not np.array_equal(second, first)


def test_a_name_without_a_folder(module_file, monkeypatch):
    monkeypatch.chdir(module_file.parent)
    assert open_module(module_file.name).inputs


@pytest.mark.parametrize("make", ["missing", "folder", "text", "sealed"])
def test_other_files(tmp_path, make):
    path = tmp_path / "file.so"
    if make == "folder":
        path.mkdir()
    elif make == "text":
        path.write_text("x" * 5000)
    elif make == "sealed":  # a sound trailer after something that is no shared object
        path.write_bytes(b"x" * 5000)
        build.append_trailer(path, "t", ())
    with pytest.raises(InputError, match=r"file\.so: (cannot open|not a Burnish module|cannot load)"):
        open_module(path)


def test_trailer_holds_the_sha256(module_file):
    data = module_file.read_bytes()
    assert data[-512:-480] == hashlib.sha256(data[:-512]).digest()
    assert data[-8:] == b"BURNISHM"


def _python_checksum(data: bytes) -> int:
    """docs/module-format.md, word for word."""
    mask, prime = 2**64 - 1, 0x9E3779B97F4A7C15
    lanes = [prime * (2 * i + 1) & mask for i in range(8)]
    padded = data + bytes(-len(data) % 64)
    for at in range(0, len(padded), 8):
        lane = at // 8 % 8
        x = (lanes[lane] ^ int.from_bytes(padded[at : at + 8], "little")) * prime & mask
        lanes[lane] = (x << 29 | x >> 35) & mask
    total = len(data) * prime & mask
    for lane in lanes:
        total = (total ^ lane) * prime & mask
        total ^= total >> 32
    return total


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_checksum_is_as_documented(size):
    data = np.random.default_rng(size).bytes(size)
    assert build.checksum(data) == _python_checksum(data)


def test_opening_is_fast(kernels, tmp_path):
    plan, path = chain_plan(), tmp_path / "large.so"
    weights = np.zeros(47 << 20, np.uint8)
    weights[: WEIGHTS.nbytes] = WEIGHTS.view(np.uint8)
    blob = encode(replace(plan, weights_size=weights.nbytes))
    link_module([kernels.object], blob, weights.tobytes(), plan.kernels, path)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        module = open_module(path)
        times.append(time.perf_counter() - start)
        del module
    assert min(times) < 0.1  # 20 ms on a quiet machine


def test_too_many_weights_are_refused(kernels, tmp_path):
    plan, weights = chain_plan(), tmp_path / "weights"
    with weights.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(UnsupportedError, match=r"cannot save .*m\.so: its weights exceed 1900 MB"):
        link_module([kernels.object], encode(plan), weights, plan.kernels, tmp_path / "m.so")


def test_a_runtime_that_was_lost_or_damaged_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_root", lambda: tmp_path)
    folder = build.runtime_library().parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / "executor.o").unlink()
    build.runtime_library()
    data = before["libburnish.so"]
    (folder / "libburnish.so").write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    build.runtime_library()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    shutil.rmtree(tmp_path)
    assert build.runtime_library().parent == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert sorted(file.name for file in folder.parent.iterdir()) == sorted([folder.name, "lock"])


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "_root", lambda: tmp_path / "file")
    with pytest.raises(ToolError, match="set BURNISH_CACHE_DIR to a folder that can be written"):
        build.runtime_library()


def test_errors_leave_no_file(kernels, tmp_path, monkeypatch):
    plan = chain_plan()
    out = tmp_path / "m.so"
    with pytest.raises(ToolError, match=r"linking the module: .* failed: .*add_one"):
        link_module([], encode(plan), WEIGHTS.tobytes(), plan.kernels, out)
    with pytest.raises(InternalError, match="3 kernels, but 2"):
        link_module([], encode(plan), None, plan.kernels[:2], out)
    with pytest.raises(InputError, match=r"cannot write .*nowhere/m\.so: No such file"):
        link(kernels, tmp_path / "nowhere" / "m.so")
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(ToolError, match="/no/such/compiler"):
        link(kernels, out)
    assert list(tmp_path.iterdir()) == []
