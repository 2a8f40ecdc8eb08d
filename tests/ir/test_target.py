"""What is read of this machine."""

import subprocess

import burnish
import pytest
from burnish.compiler import target
from burnish.compiler.target import Cache, host, host_threads
from burnish.models import zoo
from burnish.op_tuner import hardware
from burnish.runtime import build
from burnish.runtime.toolchain import find_compiler

LIMITS = [("150000 100000", 2), ("200000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("", 4)]


@pytest.mark.parametrize(("limit", "threads"), LIMITS)
def test_threads_of_a_container(monkeypatch, tmp_path, limit, threads):
    monkeypatch.setattr(target, "allowed_cpus", lambda: set(range(4)))
    monkeypatch.setattr(target, "CPU_LIMIT", tmp_path / "cpu.max")
    assert host_threads() == 4
    (tmp_path / "cpu.max").write_text(limit)
    assert host_threads() == threads


@pytest.mark.parametrize(("limit", "threads"), LIMITS)
def test_the_runtime_starts_as_many(tmp_path, require_tool, limit, threads):
    require_tool("cc")
    (tmp_path / "cpu.max").write_text(limit)
    (tmp_path / "main.c").write_text(
        '#include "pool.c"\n'
        "int32_t burnish_fail(burnish_error *e, int32_t code, int32_t step, const char *f, ...) {\n"
        "  return (void)e, (void)step, (void)f, code;\n}\n"
        'int main(void) { return printf("%d", (int)limited(4)) < 0; }\n'
    )
    include = [f"-I{build.source_dir()}", f"-I{build.include_dir()}"]
    path = tmp_path / "main"
    command = [*find_compiler().command, f'-DCPU_LIMIT="{tmp_path / "cpu.max"}"', *include]
    subprocess.run([*command, tmp_path / "main.c", "-o", path, "-lpthread"], check=True)
    assert subprocess.run([path], capture_output=True, text=True, check=True).stdout == str(threads)


def test_caches_are_those_of_a_cpu_that_may_be_used(monkeypatch):
    """The first one's are not always there, and may be a slower core's."""
    found = {4: [Cache(2, "Unified", 1 << 20, "")], 5: [Cache(2, "Unified", 1 << 21, "")]}
    monkeypatch.setattr(target, "caches_of", lambda cpu: found.get(cpu, []))
    monkeypatch.setattr(target, "allowed_cpus", lambda: {3, 4, 5})
    monkeypatch.setattr(target, "_speed", lambda cpu: 0)
    assert host.__wrapped__().l2 == 1 << 20
    monkeypatch.setattr(target, "_speed", lambda cpu: 1000 if cpu == 5 else 400)
    assert host.__wrapped__().l2 == 1 << 21


def test_a_machine_without_a_target_compiles_for_others(monkeypatch):
    monkeypatch.setattr(target, "_this_cpu", lambda: ("x86_64", frozenset({"sse2"})))
    monkeypatch.setattr(target, "host", host.__wrapped__)
    monkeypatch.setattr(hardware, "host", host.__wrapped__)
    monkeypatch.setattr(hardware, "this_hardware", hardware.this_hardware.__wrapped__)
    with pytest.raises(burnish.InputError, match="compile with --target for another machine"):
        burnish.compile(zoo.build("c12"), threads=1)
    assert burnish.compile(zoo.build("digits"), target="cortex-a53", threads=1).steps


@pytest.mark.parametrize("command", ["gcc", "gcc -march=x86-64-v3"])
def test_the_runtime_is_made_of_what_every_cpu_runs(monkeypatch, require_tool, command):
    require_tool("gcc")
    if build.THIS_ARCH != "x86_64":
        pytest.skip("the instructions are x86's")
    monkeypatch.setenv("CC", command)
    known = [*find_compiler().command, "-dM", "-E", "-xc", "/dev/null"]
    found = subprocess.run(known, capture_output=True, text=True, check=True).stdout
    assert "__SSE2__" in found and "__AVX" not in found
