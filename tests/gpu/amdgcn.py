"""Kernels compiled for AMD GPUs by clang, without a GPU and without AMD's library of device functions.

python -m tests.gpu.amdgcn NETWORK…   those of networks of the zoo for amd-rdna3: what clang says of each
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from burnish.compiler.codegen.c_dialect import module_source
from burnish.compiler.codegen.opencl import DIALECT
from burnish.compiler.target import Target, get_target

from .nvcc import sources_of

VERSIONS = ("", *(f"-{n}" for n in range(22, 14, -1)))


def _functions() -> str:
    """What generated OpenCL C calls, by what clang has for the hardware."""
    text = """
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
typedef unsigned long ulong;
#define API static inline __attribute__((overloadable, always_inline))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define as_int(x) __builtin_astype(x, int)
#define as_uint(x) __builtin_astype(x, uint)
#define as_float(x) __builtin_astype(x, float)
#define as_long(x) __builtin_astype(x, long)
#define as_ulong(x) __builtin_astype(x, ulong)
#define as_double(x) __builtin_astype(x, double)
#define as_short(x) __builtin_astype(x, short)
#define as_ushort(x) __builtin_astype(x, ushort)
API uint get_local_id(uint d) {
  return d == 0 ? __builtin_amdgcn_workitem_id_x() : d == 1 ? __builtin_amdgcn_workitem_id_y()
                                                            : __builtin_amdgcn_workitem_id_z();
}
API uint get_group_id(uint d) {
  return d == 0 ? __builtin_amdgcn_workgroup_id_x() : d == 1 ? __builtin_amdgcn_workgroup_id_y()
                                                             : __builtin_amdgcn_workgroup_id_z();
}
API void barrier(uint what) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
"""
    for type, suffix in (("float", "f"), ("double", "")):
        for name, args in (("fabs", 1), ("sqrt", 1), ("floor", 1), ("ceil", 1), ("trunc", 1), ("rint", 1),
                           ("copysign", 2), ("fma", 3)):  # fmt: skip
            taken = ", ".join("abc"[:args])
            typed = ", ".join(f"{type} {x}" for x in "abc"[:args])
            text += f"API {type} {name}({typed}) {{ return __builtin_{name}{suffix}({taken}); }}\n"
    for type in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double"):
        for n in (2, 4, 8):
            text += f"typedef {type} {type}{n} __attribute__((ext_vector_type({n})));\n"
            text += f"typedef struct {{ {type}{n} v; }} __attribute__((packed, aligned(sizeof({type})))) "
            text += f"near_{type}{n};\n"
            for space in ("__global", "__local", "__private"):
                near = f"{space} near_{type}{n} *"
                text += f"API {type}{n} vload{n}(ulong i, const {space} {type} *p) "
                text += f"{{ return ((const {near})(p + {n} * i))->v; }}\n"
                text += f"API void vstore{n}({type}{n} v, ulong i, {space} {type} *p) "
                text += f"{{ (({near})(p + {n} * i))->v = v; }}\n"
    return text


@dataclass(frozen=True)
class Resources:
    """What a kernel needs: vector registers of a thread, those that are spilt, bytes of its own memory and of
    its block's.
    """

    name: str
    registers: int
    spilt: int
    private: int
    shared: int


@lru_cache(maxsize=1)
def compiler() -> str | None:
    """A clang that compiles for amdgcn."""
    for version in VERSIONS:
        path = shutil.which(f"clang{version}")
        if path is not None:
            known = subprocess.run([path, "--print-targets"], capture_output=True, text=True).stdout
            if "amdgcn" in known:
                return path
    return None


def compiled(sources: Iterable[str], target: Target) -> list[Resources]:
    """RuntimeError with the compiler's messages where it refuses the sources."""
    program = module_source(DIALECT, list(sources))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "kernels.cl")
        path.write_text(_functions() + program)
        machine = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={target.cpu}", "-nogpulib"]
        how = ["-x", "cl", "-cl-std=CL1.2", "-cl-no-stdinc", "-w", "-O3", "-S", "-o", "-"]
        done = subprocess.run([str(compiler()), *machine, *how, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    listed = done.stdout.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    found = []
    for part in re.split(r"^  - \.a", listed, flags=re.MULTILINE)[1:]:
        numbers = {word: int(n) for word, n in re.findall(r"^    \.(\w+): +(\d+)$", part, re.MULTILINE)}
        entry = re.search(r"^    \.name: +(\w+)$", part, re.MULTILINE)
        assert entry
        spilt = numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"]
        sizes = (numbers["private_segment_fixed_size"], numbers["group_segment_fixed_size"])
        found.append(Resources(entry[1], numbers["vgpr_count"], spilt, *sizes))
    return found


def main() -> int:
    target, worst = get_target("amd-rdna3"), 0
    if compiler() is None:
        sys.exit("there is no clang that compiles for amdgcn (Debian: clang-19)")
    for network in sys.argv[1:]:
        kernels = compiled(sources_of(network, target), target)
        for k in kernels:
            if k.spilt or k.private:
                print(f"  {k.name}: {k.registers} registers, {k.spilt} spilt, {k.private} bytes of its own")
        worst = max(worst, *(k.spilt for k in kernels))
        most, shared = max(k.registers for k in kernels), max(k.shared for k in kernels)
        what = f"at most {most} registers and {shared} bytes of shared memory"
        print(f"{network} for {target.cpu}: {len(kernels)} kernels, {what}")
    return int(worst > 0)


if __name__ == "__main__":
    raise SystemExit(main())
