"""CUDA C++ → what the driver loads: machine code of one architecture, PTX for those that come after it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import ToolError
from ..settings import CUDACXX, cache_dir
from .toolchain import identify, run_tool, split_command
from .whole_file import keep_whole, read_kept

_USUAL = "/usr/local/cuda/bin/nvcc"


def find_nvcc() -> tuple[str, ...]:
    """$CUDACXX, nvcc in PATH, in the toolkit's usual place or of a package. ToolError if there is none."""
    if CUDACXX.value:
        return split_command(CUDACXX.name, CUDACXX.value)
    found = shutil.which("nvcc") or shutil.which(_USUAL) or find_packaged("nvcc")
    if found is None:
        raise ToolError(
            "modules for CUDA need nvcc to be compiled, and none is found: pip install 'burnish[cuda]', put "
            f"that of a CUDA toolkit into PATH, or set {CUDACXX.name}"
        )
    return (found,)


def find_packaged(tool: str) -> str | None:
    """A tool of CUDA as pip installs it."""
    places = Path(sysconfig.get_path("platlib"), "nvidia").glob(f"*/bin/{tool}")
    return max(map(str, places), default=None)


def fatbin(source: str, arch: str, options: Sequence[str] = (), keep: bool = True) -> bytes:
    """The program for GPUs from `arch` (sm_80, …) on; with `keep` also in the cache folder, since nvcc takes
    its time.

    ToolError if nvcc is missing, does not know the architecture or refuses the source.
    """
    command = find_nvcc()
    version = identify((*command, "--version"))
    if version is None:
        raise ToolError(
            f"the CUDA compiler {' '.join(command)!r} does not run; correct or unset {CUDACXX.name}"
        )
    number = arch.removeprefix("sm_")
    target = ["-fatbin", "-gencode", f"arch=compute_{number},code=[{arch},compute_{number}]"]
    more = [os.environ.get(f"NVCC_{end}PEND_FLAGS", "") for end in ("PRE", "AP")]  # which nvcc reads
    text = "\0".join((*command[1:], version, *more, *target, *options, source))
    path = cache_dir() / "cuda" / hashlib.sha256(text.encode()).hexdigest() if keep else None
    if path and (data := read_kept(path)) is not None:
        return data
    with tempfile.TemporaryDirectory(prefix="burnish-") as name:
        folder = Path(name)
        (folder / "kernels.cu").write_text(source)
        call = [*command, *options, *target, "-o", "kernels.fatbin", "kernels.cu"]
        run_tool(call, folder, "compiling the kernels")
        try:
            data = (folder / "kernels.fatbin").read_bytes()
        except OSError as error:
            raise ToolError(f"{command[0]} made nothing: is it nvcc?") from error
    if path:
        keep_whole(path, data)
    return data
