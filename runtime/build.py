"""Builds the C runtime with the system's compiler, and links modules with it.

The runtime is compiled once per compiler and source version into the user's cache folder. A module is the
runtime's objects, the kernels' objects, and plan and weights by `.incbin`; the same inputs, compiler and
linker give the same bytes. docs/module-format.md describes the file.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from ..errors import InputError, InternalError, UnsupportedError
from ..settings import cache_dir
from .toolchain import THIS_ARCH, Compiler, archive_tools, find_compiler, run_tool
from .whole_file import make_folder, write_whole

HERE = Path(__file__).parent
CORE = ("plan", "pool", "executor", "host", "context", "prepare", "module")  # in every module
DEVICES = {  # in modules for that device
    "opencl": ("gpu", "opencl", "program_cache"),
    "cuda": ("gpu", "cuda_module", "cuda_context", "cuda"),
}
LIBRARY_ONLY = ("memory", "open")  # also in the library of this package
PROGRAM = "runner"  # the main function of a module that is a program
KINDS = ("so", "a", "program")
_DEVICE_SOURCES = tuple(dict.fromkeys(source for sources in DEVICES.values() for source in sources))
_ALL = CORE + LIBRARY_ONLY + _DEVICE_SOURCES
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra", "-fno-ident", "-ffunction-sections")
_PLAN_HEADER = struct.Struct("<8sII5Q12I")
_TRAILER = struct.Struct("<32s392s48sIIQQ")
_MODULE_VERSION = 1
_MOST_WEIGHTS = 1900 << 20  # code and data of a module lie within 2 GiB of each other


@dataclass(frozen=True)
class DeviceCode:
    """The kernels of a module for a GPU: a key of DEVICES, and what `device_code.encode` gives."""

    device: str
    data: bytes


def include_dir() -> Path:
    """The folder of burnish.h."""
    return HERE / "include"


def source_dir() -> Path:
    """The folder of open.c and of the runtime's other sources."""
    return HERE / "src"


@lru_cache(maxsize=1)
def _names_of_runtime() -> frozenset[str]:
    """Of its headers and of a module's data, beside which a module's own name cannot stand."""
    headers = (*include_dir().glob("*.h"), *source_dir().glob("*.h"))
    code = (re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL) for path in headers)
    return frozenset(name for text in (*code, _MODULE_C) for name in re.findall(r"\bburnish_\w+", text))


def module_symbol(out: Path, kind: str) -> str:
    """What C calls the module; InputError where it stands beside the runtime, which has that name."""
    symbol = "burnish_" + re.sub(r"\W", "_", out.stem, flags=re.ASCII) if kind == "a" else "burnish_module"
    if kind == "a" and symbol in _names_of_runtime():
        raise InputError(
            f"cannot save {out}: the runtime has a {symbol} of its own; choose another file name"
        )
    return symbol


@lru_cache(maxsize=8)
def _key(compiler: Compiler) -> str:
    digest = hashlib.sha256(repr((THIS_ARCH, compiler.command, compiler.version)).encode())
    for path in sorted([Path(__file__), *source_dir().glob("*.[ch]"), *include_dir().glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(compiler: Compiler, source: str, flags: Sequence[str], cwd: Path) -> None:
    """src/<source>.c → <source>.o in `cwd`."""
    maps = [f"-ffile-prefix-map={HERE}=runtime", f"-ffile-prefix-map={cwd}=."]
    includes = [f"-I{include_dir()}", f"-I{source_dir()}"]
    path = str(source_dir() / f"{source}.c")
    command = [*compiler.command, *_FLAGS, *flags, *maps, *includes, "-c", path, "-o", f"{source}.o"]
    run_tool(command, cwd, f"compiling the runtime's {source}.c")


@lru_cache(maxsize=1)
def _root() -> Path:
    return cache_dir() / "runtime"


def _built(compiler: Compiler) -> Path:
    """The cache folder with the runtime's objects and library; made anew if the cache has been cleared."""
    return make_folder(_root() / _key(compiler), partial(_build, compiler), _is_whole)


def _build(compiler: Compiler, folder: Path) -> None:
    for source in CORE:
        _compile(compiler, source, ["-fvisibility=hidden"], folder)
    for source in LIBRARY_ONLY:
        _compile(compiler, source, [], folder)
    for source in _DEVICE_SOURCES:
        _compile(compiler, source, ["-fvisibility=hidden"], folder)
    _compile(compiler, PROGRAM, [], folder)
    objects = [f"{source}.o" for source in _ALL]
    link = ["-shared", "-pthread", "-Wl,-s", "-Wl,--build-id=none", "-o", "libburnish.so", *objects, "-ldl"]
    run_tool([*compiler.command, *link], folder, "linking the runtime")
    (folder / "digest").write_text(_digest(folder))


def _digest(folder: Path) -> str:
    """Of all that was built."""
    digest = hashlib.sha256()
    for name in (*(f"{source}.o" for source in (*_ALL, PROGRAM)), "libburnish.so"):
        data = (folder / name).read_bytes()
        digest.update(f"{name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds what was built: caches lose files, and what is damaged would be linked."""
    try:
        return (folder / "digest").read_text() == _digest(folder)
    except (OSError, ValueError):
        return False


def runtime_library() -> Path:
    """The shared library that runs modules inside of this process; built on first use."""
    return _built(find_compiler()) / "libburnish.so"


def runtime_objects(compiler: Compiler | None = None, device: str = "") -> list[Path]:
    """The object files that every module for the device contains; "" is the CPU."""
    folder = _built(compiler or find_compiler())
    return [folder / f"{source}.o" for source in CORE + DEVICES.get(device, ())]


def checksum(data: bytes | mmap.mmap) -> int:
    """The fast checksum of module files (src/checksum.h)."""
    function = ctypes.CDLL(str(runtime_library())).burnish_checksum_of
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_uint64]
    view = np.frombuffer(data, np.uint8)
    return function(view.ctypes.data, view.nbytes)


def plan_facts(blob: bytes) -> tuple[str, tuple[str, ...], int]:
    """Target, CPU features and number of kernels of an encoded plan."""
    if len(blob) < _PLAN_HEADER.size or blob[:8] != b"BURNPLAN":
        raise InternalError("the plan to link does not begin with BURNPLAN")
    kernels, features, *_, string_bytes, _, target, _ = _PLAN_HEADER.unpack_from(blob)[10:]
    strings = blob[len(blob) - string_bytes :]

    def text(offset: int) -> str:
        return strings[offset : strings.index(b"\0", offset)].decode("utf-8", "replace")

    offsets = struct.unpack_from(f"<{features}I", blob, len(blob) - string_bytes - 4 * features)
    return text(target), tuple(text(o) for o in offsets), kernels


_MODULE_C = """#include "api.h"
#include "context.h"

#define HIDDEN __attribute__((visibility("hidden")))

#define DATA(name, alignment, file)                                                     \\
  __asm__(".pushsection .rodata\\n.balign " alignment "\\n.globl " name "\\n.hidden " name \\
          "\\n" name ":\\n.incbin \\"" file "\\"\\n.byte 0\\n.popsection\\n")
DATA("burnish_plan_data", "64", "plan.bin");
DATA("burnish_weights_data", "4096", "weights.bin");
DATA("burnish_code_data", "64", "code.bin");

extern HIDDEN const unsigned char burnish_plan_data[], burnish_weights_data[], burnish_code_data[];
{declarations}
static const burnish_kernel kernels[] = {{{names}0}};
static burnish_shared_parts parts = {{PTHREAD_MUTEX_INITIALIZER, 0, 0, 0}};
static const burnish_image image = {{burnish_plan_data, {plan_bytes}u, burnish_weights_data, {weights_bytes}u,
                                    kernels, {kernel_count}u, &parts, 1, &burnish_{device},
                                    burnish_code_data, {code_bytes}u}};
extern __attribute__((visibility("default"))) const burnish_api {symbol};
const burnish_api {symbol} = BURNISH_TABLE(&image);
"""


_DECLARED = "\nextern const burnish_api burnish_"  # in a module's header, and in no other
_HEADER_END = """
#ifdef __cplusplus
extern "C" {{
#endif
extern const burnish_api {symbol};
#ifdef __cplusplus
}}
#endif
"""


def is_module_header(path: Path) -> bool:
    """Whether a file is a header that `link_module` wrote. InputError where that cannot be seen."""
    try:
        return path.is_file() and _DECLARED.encode() in path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _write_parts(
    folder: Path,
    objects: Sequence[bytes],
    plan: bytes,
    weights: Path | bytes | memoryview | None,
    kernels: Sequence[str],
    symbol: str,
    code: DeviceCode | None,
) -> list[str]:
    """Everything that the linker needs, in `folder`; the names of the kernels' objects."""
    for name in kernels:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise InternalError(f"the kernel name {name!r} is no C identifier")
    (folder / "plan.bin").write_bytes(plan)
    if isinstance(weights, Path):
        (folder / "weights.bin").symlink_to(weights.resolve())
    else:
        (folder / "weights.bin").write_bytes(weights or b"")
    (folder / "code.bin").write_bytes(code.data if code else b"")
    functions = () if code else kernels
    source = _MODULE_C.format(
        declarations="\n".join(
            f"int32_t {k}(const burnish_call *, int64_t, int64_t, int32_t);" for k in functions
        ),
        names="".join(f"{k}, " for k in functions),
        plan_bytes=len(plan),
        weights_bytes=(folder / "weights.bin").stat().st_size,
        kernel_count=len(kernels),
        symbol=symbol,
        device=code.device if code else "cpu",
        code_bytes=len(code.data) if code else 0,
    )
    (folder / "module.c").write_text(source)
    names = [f"kernels{i}.o" for i in range(len(objects))]
    for name, data in zip(names, objects):
        (folder / name).write_bytes(data)
    return names


def append_trailer(path: Path, target: str, features: Sequence[str]) -> None:
    """Appends to a shared object what docs/module-format.md says, without holding the file in memory."""
    names = " ".join(features).encode()
    if len(names) >= 392:
        raise InternalError(f"the CPU feature names take {len(names)} bytes, expected at most 391")
    digest = hashlib.sha256()
    with path.open("r+b") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        size = file.tell() + 512
        label = target.encode()[:47]
        file.write(_TRAILER.pack(digest.digest(), names, label, _MODULE_VERSION, 512, size, 0))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            total = checksum(data)
        file.write(struct.pack("<Q8s", total, b"BURNISHM"))


def _link_shared(compiler: Compiler, folder: Path, objects: Sequence[str]) -> Path:
    (folder / "exports.map").write_text("{ global: burnish_module; local: *; };\n")
    flags = ["-shared", "-pthread", "-Wl,-s", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-z,defs"]
    flags += ["-Wl,-z,noexecstack", "-Wl,--version-script=exports.map", "-Wl,-soname=burnish_module"]
    flags += compiler.link
    command = [*compiler.command, *flags, "-o", "module.out", *objects, "-Wl,--as-needed", "-lm", "-ldl"]
    run_tool(command, folder, "linking the module")
    target, features, _ = plan_facts((folder / "plan.bin").read_bytes())
    output = folder / "module.out"
    append_trailer(output, target, features)
    return output


def _link_archive(
    compiler: Compiler, folder: Path, objects: Sequence[str], symbol: str, tools: tuple[str, str]
) -> Path:
    """One relocatable object that shows only `symbol`, so that several archives fit into one application."""
    objcopy, archiver = tools
    run_tool([*compiler.command, "-r", "-nostdlib", "-o", "all.o", *objects], folder, "linking the module")
    keep = [f"--keep-global-symbol={symbol}", "--strip-unneeded"]
    run_tool([objcopy, *keep, "all.o", "module.o"], folder, "hiding the module's symbols")
    run_tool([archiver, "rcD", "module.out", "module.o"], folder, "archiving the module")
    return folder / "module.out"


def _link_program(compiler: Compiler, folder: Path, objects: Sequence[str]) -> Path:
    """A program without shared libraries."""
    flags = ["-static", "-pthread", "-Wl,-s", "-Wl,--gc-sections", *compiler.link]
    command = [*compiler.command, *flags, "-o", "module.out"]
    main = str(_built(compiler) / f"{PROGRAM}.o")
    run_tool([*command, *objects, main, "-lm"], folder, "linking the program")
    return folder / "module.out"


def _publish(made: Path, out: Path) -> None:
    """Copies `made` to `out`, so that nobody sees half a file. InputError if that fails."""
    with made.open("rb") as source:
        mode = 0o644 if out.suffix in (".a", ".h") else 0o755
        write_whole(out, partial(shutil.copyfileobj, source, length=1 << 20), mode)


def link_module(
    objects: Sequence[bytes],
    plan: bytes,
    weights: Path | bytes | memoryview | None,
    kernels: Sequence[str],
    out: Path,
    kind: str = "so",
    arch: str = THIS_ARCH,
    code: DeviceCode | None = None,
) -> None:
    """Writes a module: `kind` "so" is one loadable file; "a" is an archive, with a header OUT.h beside it;
    "program" is a static program that runs the module on a file of inputs (src/runner.c).

    `objects` are relocatable object files (position-independent) that define the symbols `kernels`, listed in
    the order of the plan's kernel table; of a module for a GPU they are in `code`, and there are no objects.
    InputError if `out` cannot be written, ToolError if linking fails.
    """
    if kind not in KINDS:
        raise InputError(f"module kind {kind!r}: expected one of {', '.join(KINDS)}")
    if plan_facts(plan)[2] != len(kernels):
        raise InternalError(f"the plan has {plan_facts(plan)[2]} kernels, but {len(kernels)} are given")
    if (os.stat(weights).st_size if isinstance(weights, Path) else len(weights or b"")) > _MOST_WEIGHTS:
        raise UnsupportedError(
            f"cannot save {out}: its weights exceed {_MOST_WEIGHTS >> 20} MB; run it from memory"
        )
    symbol = module_symbol(out, kind)
    beside = out.with_suffix(".h")
    if kind == "a" and os.path.exists(beside) and not is_module_header(beside):
        raise InputError(f"{beside} is no header of a module, and would be replaced: give {out} another name")
    compiler = find_compiler(arch, static=kind == "program")
    core = [str(o) for o in runtime_objects(compiler, code.device if code else "")]
    tools = archive_tools(arch) if kind == "a" else None
    try:
        with tempfile.TemporaryDirectory(prefix="burnish-") as name:
            folder = Path(name)
            parts = _write_parts(folder, objects, plan, weights, kernels, symbol, code)
            includes = [f"-I{include_dir()}", f"-I{source_dir()}", "-fvisibility=hidden"]
            command = [*compiler.command, *_FLAGS, *includes, "-c", "module.c", "-o", "module_table.o"]
            run_tool(command, folder, "assembling the module")
            everything = ["module_table.o", *parts, *core]
            if kind == "so":
                _publish(_link_shared(compiler, folder, everything), out)
            elif kind == "program":
                _publish(_link_program(compiler, folder, everything), out)
            elif tools:
                made = _link_archive(compiler, folder, everything, symbol, tools)
                header = folder / "module.h"
                header.write_text(
                    (include_dir() / "burnish.h").read_text() + _HEADER_END.format(symbol=symbol)
                )
                _publish(made, out)
                _publish(header, beside)
    except OSError as error:
        where = error.filename or f"to the folder of temporary files, {tempfile.gettempdir()}"
        raise InputError(f"linking {out}: cannot write {where}: {error.strerror}") from error
