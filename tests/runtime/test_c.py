"""Modules from C and C++: the public header, the examples, archives, and memory checkers."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from burnish.compiler.ir.plan import BufferRef, KernelCall, Plan, PlanIO, encode
from burnish.compiler.ir.types import F32, TensorType
from burnish.runtime import build
from burnish.runtime.build import include_dir, link_module

from .conftest import NBYTES, ROWS, WEIGHTS, chain_meaning, chain_plan, prepared_plan, some_rows
from .test_run import gang_plan, gather_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def link(kernels, plan: Plan, out: Path, weights: bytes = b"") -> Path:
    link_module([kernels.object], encode(plan), weights, plan.kernels, out, out.suffix[1:])
    return out


def execute(*command, cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def examples(tmp_path_factory, require_tool) -> Path:
    require_tool("make")
    require_tool("cc")
    folder = tmp_path_factory.mktemp("examples") / "examples"
    shutil.copytree(EXAMPLES, folder)
    execute("make", f"BURNISH={build.HERE}", "all", cwd=folder / "c")
    return folder


@pytest.fixture(scope="module")
def modules(kernels, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    link(kernels, chain_plan(), folder / "chain.so", WEIGHTS.tobytes())
    link(kernels, prepared_plan(), folder / "prepared.so", WEIGHTS.tobytes())
    link(kernels, gang_plan(), folder / "gang.so")
    link(kernels, gather_plan(), folder / "gather.so")
    return folder


@pytest.mark.parametrize(
    "command", [["cc", "-std=c11", "-xc"], ["g++", "-std=c++17", "-xc++"]], ids=["c", "c++"]
)
def test_the_header_stands_alone(command, require_tool):
    require_tool(command[0])
    execute(*command, *STRICT, "-fsyntax-only", include_dir() / "burnish.h")


def test_the_headers_example_compiles(require_tool, tmp_path):
    lines = (include_dir() / "burnish.h").read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if "#include <burnish.h>" in line)
    end = next(i for i, line in enumerate(lines) if "burnish_close(&file);" in line)
    body = [line.lstrip(" *") for line in lines[begin + 1 : end + 1]]
    source = "#include <burnish.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(body)
    (tmp_path / "a.c").write_text(source + '\nprintf("%g\\n", scores[0]);\nreturn 0;\n}\n')
    execute(require_tool("cc"), "-std=c11", *STRICT, f"-I{include_dir()}", "-fsyntax-only", tmp_path / "a.c")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_c_example_runs_a_module(examples, modules, tmp_path, threads):
    x = some_rows()
    (tmp_path / "x.raw").write_bytes(x.tobytes())
    text = execute(
        *(examples / "c/main", modules / "chain.so", "--threads", threads), f"x={tmp_path / 'x.raw'}"
    )
    y = chain_meaning(x)
    assert f"mean {y.mean(dtype=np.float64):g}, largest {y.max():g} at {y.argmax()}" in text
    assert f"{threads} threads" in text


def test_the_c_example_reports_errors(examples, modules, tmp_path):
    main = examples / "c/main"
    (tmp_path / "index.raw").write_bytes(np.full(64, 64, np.int64).tobytes())
    index = f"index={tmp_path / 'index.raw'}"
    assert "node Gather_7" in execute(main, modules / "gather.so", index, status=1)
    assert "expected INPUT=FILE" in execute(main, modules / "gather.so", "z=z", status=1)
    assert "cannot open" in execute(main, tmp_path / "none.so", status=1)
    assert "usage" in execute(main, status=2)


def test_digits_prints_an_accuracy(kernels, examples, tmp_path):
    """`reverse` as the classifier: the class is 15 minus the position of the brightest pixel."""
    kind = TensorType(F32, (8, 16))
    step = KernelCall(
        "reverse", "R", (BufferRef.input(0, 512), BufferRef.output(0, 512)), (1,), 8, scratch=64
    )
    plan = Plan("d", "", (), (PlanIO("x", kind),), (PlanIO("y", kind),), 0, 0, (step,))
    module = link(kernels, plan, tmp_path / "d.so")
    images = some_rows()[:21]
    labels = (15 - images.argmax(1)).astype(np.uint8)
    labels[:3] ^= 1
    (tmp_path / "images").write_bytes(images.tobytes())
    (tmp_path / "labels").write_bytes(labels.tobytes())
    text = execute(examples / "c/digits", module, tmp_path / "images", tmp_path / "labels")
    assert text == "18 of 21 right, accuracy 0.8571\n"


def test_cpp_application(examples, modules, require_tool):
    require_tool("g++")
    execute("make", f"BURNISH={build.HERE}", "main", cwd=examples / "cpp")
    assert "two contexts agree" in execute(examples / "cpp/main", modules / "chain.so")


def test_static_example(kernels, examples):
    link(kernels, chain_plan(), examples / "c/chain.a", WEIGHTS.tobytes())
    execute("make", "static", "MODEL=chain", cwd=examples / "c")
    assert execute("./static", cwd=examples / "c") == "chain: ran 3 kernels\n"


TWO_MODELS = """
#include "one.h"
#include "two.h"
#include <stdio.h>

static float first(const burnish_api *model) {
  burnish_context *context;
  float result = -1;
  if (!model->create(model, 0, &context, 0)) {
    if (!model->run(context)) result = ((float *)model->output_data(context, 0))[15];
    model->destroy(context);
  }
  return result;
}

int main(void) { printf("%g %g\\n", first(&burnish_one), first(&burnish_two)); }
"""


def test_two_archives_in_one_application(kernels, tmp_path, require_tool):
    """Both archives hold the same kernel and runtime symbols; none may leak."""
    link(kernels, chain_plan(), tmp_path / "one.a", WEIGHTS.tobytes())
    link(kernels, prepared_plan(), tmp_path / "two.a", (WEIGHTS + 6).tobytes())
    (tmp_path / "main.c").write_text(TWO_MODELS)
    cc = [require_tool("cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-I."]
    execute(*cc, "main.c", "one.a", "two.a", "-pthread", "-lm", "-o", "main", cwd=tmp_path)
    assert execute("./main", cwd=tmp_path) == "-500 -493\n"
    both = "int main() { return !burnish_one.version + !burnish_two.version; }"
    (tmp_path / "main.cpp").write_text(f'#include "one.h"\n#include "two.h"\n{both}\n')
    execute(require_tool("g++"), *STRICT, "-I.", "-fsyntax-only", "main.cpp", cwd=tmp_path)


def test_valgrind_finds_nothing(examples, modules, require_tool):
    command = [require_tool("valgrind"), "-q", "--error-exitcode=9", "--leak-check=full"]
    for module, threads in (("chain", 1), ("chain", 2), ("gang", 2), ("prepared", 1), ("prepared", 2)):
        execute(*command, examples / "c/main", modules / f"{module}.so", "--repeat", 3, "--threads", threads)


DEVICE_SOURCES = dict.fromkeys(source for sources in build.DEVICES.values() for source in sources)
RUNTIME = [f"{build.source_dir()}/{name}.c" for name in (*build.CORE, "memory", *DEVICE_SOURCES)]
SANITIZED_MAIN = """
#include "burnish.h"
#include <stdio.h>
#include <stdlib.h>

extern int32_t burnish_module_create(const void *, uint64_t, const void *, uint64_t, const burnish_kernel *,
                                     uint64_t, const burnish_api **, burnish_error *);
extern void burnish_module_destroy(const burnish_api *);
int32_t add_one(const burnish_call *, int64_t, int64_t, int32_t);
int32_t multiply(const burnish_call *, int64_t, int64_t, int32_t);
int32_t reverse(const burnish_call *, int64_t, int64_t, int32_t);
int32_t rotate(const burnish_call *, int64_t, int64_t, int32_t);

static _Alignas(64) unsigned char plan[1 << 16], weights[4096];

int main(int argc, char **argv) {
  const burnish_kernel chain[] = {add_one, multiply, reverse, rotate};
  burnish_error error;
  const burnish_api *model;
  FILE *file = fopen(argv[1], "rb");
  size_t size = fread(plan, 1, sizeof plan, file);
  fclose(file);
  if (argc != 2 || burnish_module_create(plan, size, weights, 4096, chain, 4, &model, &error))
    return puts(error.message), 1;
  for (int threads = 1; threads <= 4; threads++) {
    burnish_options options = BURNISH_OPTIONS;
    burnish_context *context;
    options.threads = threads;
    if (model->create(model, &options, &context, &error)) return puts(error.message), 1;
    for (int i = 0; i < 300; i++)
      if (model->run(context)) return puts(model->last_error(context)->message), 1;
    model->destroy(context);
  }
  burnish_module_destroy(model);
  return 0;
}
"""


def sanitized_plan() -> Plan:
    vector = BufferRef.arena(2 * NBYTES, 256)
    result, work = BufferRef.arena(2 * NBYTES + 256, 256), BufferRef.arena(2 * NBYTES + 512, 512)
    clear = KernelCall("add_one", "Clear", (BufferRef.input(0, 256), vector), (1,), 4)
    gang = KernelCall("rotate", "Gang", (vector, result, work), (1, 2), 64, gang=True)
    plan = prepared_plan()
    return replace(plan, arena_size=2 * NBYTES + 1024, steps=(*plan.steps, clear, gang, plan.steps[-1]))


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path, require_tool):
    cc = [require_tool("cc"), "-std=c11", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    probe = subprocess.run([*cc, "empty.c", "-o", "empty"], cwd=tmp_path, capture_output=True)
    if probe.returncode or subprocess.run(["./empty"], cwd=tmp_path, capture_output=True).returncode:
        require_tool(f"cc -fsanitize={sanitizer}")
    (tmp_path / "main.c").write_text(SANITIZED_MAIN)
    (tmp_path / "plan.bin").write_bytes(encode(sanitized_plan()))
    assert sanitized_plan().inputs == (PlanIO("x", ROWS),)
    includes = [f"-I{include_dir()}", f"-I{build.source_dir()}"]
    kernels = Path(__file__).parent / "kernels.c"
    execute(*cc, *includes, "main.c", kernels, *RUNTIME, "-pthread", "-ldl", "-o", "main", cwd=tmp_path)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        ["./main", "plan.bin"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
