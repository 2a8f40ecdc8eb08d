"""Arm Compute Library for an emulated AArch64 machine, on models that are one convolution."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import ToolError, UnsupportedError
from .base import Arrays, Network
from .emulated import EmulatedPeer, EmulatedProgram, System
from .loops_peer import single_convolution

COMPILER = "aarch64-linux-gnu-g++"
LAYOUTS = {"nchw": ((0, 1, 2, 3), (0, 1, 2, 3)), "nhwc": ((0, 2, 3, 1), (0, 3, 1, 2))}
"""Axes from ONNX's order, and back."""
FIELDS = "N C H W K R S OH OW SH SW TOP LEFT BOTTOM RIGHT DH DW".split()


class ArmCompute(EmulatedPeer):
    """Its static libraries and headers are in the system's root, as Debian's libarm-compute-dev puts them."""

    def __init__(self, system: System, layout: str):
        self.system, self.layout, self.name = system, layout, f"arm-compute-{layout}"
        self.headers = system.root / "usr/include/aarch64-linux-gnu"
        self.libraries = system.root / "usr/lib/aarch64-linux-gnu"

    def version(self) -> str:
        if not (self.libraries / "libarm_compute-static.a").is_file():
            raise ToolError(f"not installed: no libarm_compute-static.a in {self.libraries}")
        for file in self.system.root.glob("usr/share/doc/libarm-compute-dev/changelog*.gz"):
            return _packaged(file)
        return ""

    def prepare(self, network: Network, inputs: Arrays, folder: Path) -> EmulatedProgram:
        convolution = single_convolution(network)
        sizes = dict(convolution.sizes)
        if sizes["G"] != 1:
            raise UnsupportedError("Arm Compute Library has no convolution of several groups")
        sizes["BOTTOM"] = sizes["PH"] - sizes["H"] - sizes["TOP"]
        sizes["RIGHT"] = sizes["PW"] - sizes["W"] - sizes["LEFT"]
        there, back = LAYOUTS[self.layout]
        given, made, method = (folder / name for name in ("inputs", "outputs", "method"))
        (image,) = inputs.values()
        arrays = (image.transpose(there), convolution.weights.transpose(there), convolution.bias)
        given.write_bytes(b"".join(array.tobytes() for array in arrays))
        numbers = (sizes[field] for field in FIELDS)
        command = (Path(self._built.name, "program"), self.layout, given, made, method, *numbers)

        def outputs() -> dict[str, np.ndarray]:
            shape = [convolution.result[axis] for axis in there]
            return {network.output_names[0]: np.fromfile(made, np.float32).reshape(shape).transpose(back)}

        return EmulatedProgram(command, outputs, algorithm=method.read_text)

    @cached_property
    def _built(self) -> tempfile.TemporaryDirectory:
        """A folder with the program, which takes any convolution."""
        folder = tempfile.TemporaryDirectory(prefix="burnish-")
        source, program = Path(__file__).with_name("arm_compute.cpp"), Path(folder.name, "program")
        if shutil.which(COMPILER) is None:
            raise ToolError(f"not installed: {COMPILER} (Debian: g++-aarch64-linux-gnu)")
        found = [f"-I{self.headers}", f"-L{self.libraries}"]
        libraries = ["-larm_compute-static", "-larm_compute_core-static", "-lpthread"]
        command = [COMPILER, "-O2", "-static", *found, str(source), "-o", str(program), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
            raise ToolError(f"{source.name} (exit {done.returncode}): {lines[0].strip()}")
        return folder


def _packaged(changelog: Path) -> str:
    """The version in the first line of a Debian package's changelog: package (version) …"""
    with gzip.open(changelog, "rt") as lines:
        found = re.search(r"\(([^)+-]+)", lines.readline())
    return found[1] if found else ""
