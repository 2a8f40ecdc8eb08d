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
from burnish.compiler.target import host_threads
from burnish.runtime import build
from burnish.runtime.build import include_dir, link_module

from .conftest import NBYTES, ROWS, WEIGHTS, chain_meaning, chain_plan, prepared_plan, some_rows
from .test_run import gang_plan, gather_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_MEMORY, NO_THREAD = -2, -3
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def link(kernels, plan: Plan, out: Path, weights: bytes = b"") -> Path:
    link_module([kernels.object], encode(plan), weights, plan.kernels, out, out.suffix[1:])
    return out


def execute(*command, cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=240)
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


@pytest.mark.parametrize("source", build._ALL)
def test_the_runtime_compiles_without_warnings(source, require_tool):
    """Where it is built for users, another compiler's warnings are no errors."""
    require_tool("cc")
    path = build.source_dir() / f"{source}.c"
    execute("cc", *build._FLAGS, "-Werror", f"-I{include_dir()}", "-c", path, "-o", os.devnull)


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


REFUSALS = r"""
#include "squared.h"
#include <stdio.h>
#include <string.h>

static int failed;
static burnish_error error;
#define EXPECT(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); failed = 1; } } while (0)
#define REFUSED(call) \
  do { error.code = 0; EXPECT((call) == error.code && error.code == BURNISH_BAD_ARGUMENT); } while (0)

static float x[64 * 16], y[64 * 16];

int main(int argc, char **argv) {
  const burnish_api *model = &burnish_squared;
  burnish_options options = BURNISH_OPTIONS;
  burnish_context *context, *second;
  burnish_pool *pool;
  burnish_tensor tensor;
  burnish_step step;
  burnish_file file;
  burnish_open_options opening = {4, 0, 0};
  int64_t took[8];
  (void)argc;

  EXPECT(model->check(model, &error) == BURNISH_OK && model->check(model, NULL) == BURNISH_OK);
  EXPECT(model->input(model, -1, &tensor) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->input(model, 1, &tensor) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->output(model, 1, &tensor) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->step(model, 99, &step) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->step(model, -1, &step) == BURNISH_BAD_ARGUMENT);

  REFUSED(model->create(model, NULL, NULL, &error));
  options.size = 4;
  REFUSED(model->create(model, &options, &context, &error));
  REFUSED(model->prepare(model, &options, &error));
  options.size = sizeof options;
  for (int n = 0; n < 2; n++) {
    options.threads = n ? BURNISH_MAX_THREADS + 1 : -1;
    REFUSED(model->create(model, &options, &context, &error));
    REFUSED(model->pool_create(options.threads, &pool, &error));
  }
  REFUSED(model->pool_create(1, NULL, &error));
  REFUSED(burnish_open(argv[1], &opening, &file, &error));
  opening.size = sizeof opening;
  opening.threads = -1;
  REFUSED(burnish_open(argv[1], &opening, &file, &error));
  options.threads = -1;
  REFUSED(model->prepare(model, &options, &error));
  REFUSED(burnish_open(NULL, NULL, &file, &error));
  burnish_close(&file);
  burnish_close(NULL);
  EXPECT(model->create(model, NULL, NULL, NULL) == BURNISH_BAD_ARGUMENT);

  EXPECT(!model->prepare(model, NULL, &error) && !model->prepare(model, NULL, NULL));
  EXPECT(!model->create(model, NULL, &context, &error) && model->threads(context) == 1);
  EXPECT(model->bind_input(context, 0, x, sizeof x - 4) == BURNISH_BAD_ARGUMENT);
  EXPECT(strstr(model->last_error(context)->message, "4092 bytes, expected 4096") != NULL);
  EXPECT(model->bind_input(context, 0, (char *)x + 1, sizeof x) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->bind_input(context, 7, x, sizeof x) == BURNISH_BAD_ARGUMENT);
  EXPECT(model->bind_output(context, -1, y, sizeof y) == BURNISH_BAD_ARGUMENT);
  EXPECT(!model->input_data(context, -1) && !model->output_data(context, 1));
  EXPECT(!model->device_data(context, 0, 0));
  for (int i = 0; i < 64 * 16; i++) x[i] = 1;
  EXPECT(!model->bind_input(context, 0, x, sizeof x) && !model->bind_output(context, 0, y, sizeof y));
  EXPECT(!model->run(context));
  float one = y[15];
  EXPECT(!model->bind_input(context, 0, NULL, 0) && !model->run(context));
  EXPECT(one == 2 * y[15]); /* of zeros, to which one is added, too */

  for (int i = 0; i < 8; i++) took[i] = -1;
  EXPECT(!model->profile(context, took) && !model->run(context));
  for (int i = 0; i < model->step_count(model); i++) EXPECT(took[i] >= 0);
  took[0] = -1;
  EXPECT(!model->profile(context, NULL) && !model->run(context) && took[0] == -1);

  EXPECT(!model->create(model, NULL, &second, NULL) && !model->run(second));
  model->destroy(second);
  model->destroy(context);
  model->destroy(NULL);
  model->unprepare(model);
  EXPECT(!model->create(model, NULL, &context, &error) && !model->run(context));
  model->destroy(context);
  model->unprepare(model);
  model->unprepare(model); /* once too often */
  EXPECT(!model->create(model, NULL, &context, &error) && !model->run(context)); /* which prepares anew */
  model->destroy(context);
  return failed;
}
"""


def test_wrong_calls_are_refused_and_weights_prepared_as_often_as_asked(
    kernels, modules, tmp_path, require_tool
):
    link(kernels, prepared_plan(), tmp_path / "squared.a", WEIGHTS.tobytes())
    (tmp_path / "main.c").write_text(REFUSALS)
    cc = [require_tool("cc"), "-std=c11", "-g", *STRICT, f"-I{include_dir()}", "-I."]
    opener = build.source_dir() / "open.c"
    execute(*cc, "main.c", opener, "squared.a", "-pthread", "-ldl", "-lm", "-o", "main", cwd=tmp_path)
    valgrind = [require_tool("valgrind"), "-q", "--error-exitcode=9", "--leak-check=full"]
    for command in ([], valgrind):
        assert execute(*command, "./main", modules / "chain.so", cwd=tmp_path) == ""


def test_valgrind_finds_nothing(examples, modules, require_tool):
    command = [require_tool("valgrind"), "-q", "--error-exitcode=9", "--leak-check=full"]
    for module, threads in (("chain", 1), ("chain", 2), ("gang", 2), ("prepared", 1), ("prepared", 2)):
        execute(*command, examples / "c/main", modules / f"{module}.so", "--repeat", 3, "--threads", threads)


DEVICE_SOURCES = dict.fromkeys(source for sources in build.DEVICES.values() for source in sources)
RUNTIME = [f"{build.source_dir()}/{name}.c" for name in (*build.CORE, "memory", *DEVICE_SOURCES)]
LINKED = """
#include "burnish.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int32_t burnish_module_create(const void *, uint64_t, const void *, uint64_t, const burnish_kernel *,
                                     uint64_t, const burnish_api **, burnish_error *);
extern void burnish_module_destroy(const burnish_api *);
int32_t add_one(const burnish_call *, int64_t, int64_t, int32_t);
int32_t multiply(const burnish_call *, int64_t, int64_t, int32_t);
int32_t reverse(const burnish_call *, int64_t, int64_t, int32_t);
int32_t rotate(const burnish_call *, int64_t, int64_t, int32_t);

static _Alignas(64) unsigned char plan[1 << 16], weights[4096];
"""
"""What a program sees that a module is linked into."""
SANITIZED_MAIN = (
    LINKED
    + """

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
)


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


FORKED_MAIN = (
    LINKED
    + """
#include <sys/wait.h>
#include <unistd.h>

pid_t same_number(void) { return 7; }

int main(int argc, char **argv) {
  const burnish_kernel chain[] = {add_one, multiply, reverse, rotate};
  static unsigned char right[4096];
  burnish_error error;
  const burnish_api *model;
  burnish_options options = BURNISH_OPTIONS;
  burnish_context *context;
  FILE *file = fopen(argv[argc - 1], "rb");
  size_t size = fread(plan, 1, sizeof plan, file);
  fclose(file);
  for (int n = 0; n < 4096; n++) weights[n] = n % 7;
  options.threads = 3;
  if (burnish_module_create(plan, size, weights, 4096, chain, 4, &model, &error) ||
      model->create(model, &options, &context, &error))
    return puts(error.message), 1;
  if (model->run(context)) return 2;
  memcpy(right, model->output_data(context, 0), sizeof right);
  int status = 0;
  pid_t child = fork();
  if (!child) alarm(60);
  if (model->run(context) || memcmp(right, model->output_data(context, 0), sizeof right)) return 3;
  model->destroy(context);
  burnish_module_destroy(model);
  return child && waitpid(child, &status, 0) == child ? status : 0;
}
"""
)


def test_a_forked_child_with_its_parents_number_runs_alone(tmp_path, require_tool):
    """As the first process of a container within a container has."""
    (tmp_path / "main.c").write_text(FORKED_MAIN)
    (tmp_path / "plan.bin").write_bytes(encode(sanitized_plan()))
    cc = [require_tool("cc"), "-std=gnu11", "-O1", "-Dgetpid=same_number"]
    includes = [f"-I{include_dir()}", f"-I{build.source_dir()}"]
    kernels = Path(__file__).parent / "kernels.c"
    execute(*cc, *includes, "main.c", kernels, *RUNTIME, "-pthread", "-ldl", "-o", "main", cwd=tmp_path)
    execute("./main", "plan.bin", cwd=tmp_path)


REFUSED_MAIN = (
    LINKED
    + """
static int left, refused;  /* calls until one is refused */

static int refuses(void) { return !left-- ? ++refused : 0; }

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
int __real_posix_memalign(void **, size_t, size_t);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
void *__wrap_malloc(size_t n) { return refuses() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return refuses() ? NULL : __real_calloc(n, size); }
int __wrap_posix_memalign(void **out, size_t align, size_t n) {
  return refuses() ? 12 : __real_posix_memalign(out, align, n);
}
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
  return refuses() ? 11 : __real_pthread_create(t, a, f, x);
}

static int32_t attempt(size_t size, int32_t threads, unsigned char *result, burnish_error *error) {
  const burnish_kernel chain[] = {add_one, multiply, reverse, rotate};
  const burnish_api *model;
  burnish_options options = BURNISH_OPTIONS;
  burnish_context *context;
  options.threads = threads;
  int32_t status = burnish_module_create(plan, size, weights, 4096, chain, 4, &model, error);
  if (status) return status;
  status = model->create(model, &options, &context, error);
  if (!status) {
    status = model->run(context);
    if (status) *error = *model->last_error(context);
    memcpy(result, model->output_data(context, 0), 4096);
    model->destroy(context);
  }
  burnish_module_destroy(model);
  return status;
}

int main(int argc, char **argv) {
  static unsigned char right[4096], found[4096];
  burnish_error error = {0};
  FILE *file = fopen(argv[argc - 1], "rb");
  size_t size = fread(plan, 1, sizeof plan, file);
  fclose(file);
  for (int n = 0; n < 4096; n++) weights[n] = n % 7;
  left = -1;
  if (attempt(size, 3, right, &error)) return puts(error.message), 1;
  for (int n = 0;; n++) {
    left = n, refused = 0;
    int32_t status = attempt(size, 3, found, &error);
    printf("%d %s\\n", status, status ? error.message : "");
    if (!status && memcmp(right, found, sizeof right)) return puts("another result"), 1;
    if (!refused) return status;
  }
}
"""
)
WRAPPED = ("malloc", "calloc", "posix_memalign", "pthread_create")


def test_whatever_the_system_refuses_is_said(tmp_path, require_tool):
    """Memory or a thread, one call after the other: no crash and no leak."""
    cc = [require_tool("cc"), "-std=c11", "-O1", "-g", "-fsanitize=address,undefined"]
    (tmp_path / "main.c").write_text(REFUSED_MAIN)
    (tmp_path / "plan.bin").write_bytes(encode(sanitized_plan()))
    includes = [f"-I{include_dir()}", f"-I{build.source_dir()}"]
    kernels = Path(__file__).parent / "kernels.c"
    wrapped = ["-Wl," + ",".join(f"--wrap={name}" for name in WRAPPED)]
    execute(
        *cc, *includes, "main.c", kernels, *RUNTIME, *wrapped, "-pthread", "-ldl", "-o", "main", cwd=tmp_path
    )
    said = execute("./main", "plan.bin", cwd=tmp_path).splitlines()
    codes = [int(line.partition(" ")[0]) for line in said]
    assert codes[-1] == 0 and set(codes) == {0, NO_MEMORY, NO_THREAD}
    assert all(line.partition(" ")[2] for line, code in zip(said, codes) if code)
    assert codes[:-1].count(0) == host_threads() - 1, "threads that would help to prepare weights"
