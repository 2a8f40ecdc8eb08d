"""The naive loops of a convolution in C through compilers that transform loops: gcc, its polyhedral optimiser
Graphite, and clang's, Polly.

Each runs at -O3 for this CPU and may reorder sums, without which none of them vectorises.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from ...errors import ToolError, UnsupportedError
from .base import Arrays, Network, Peer, Runner

CLANGS = ("clang", *(f"clang-{version}" for version in range(30, 13, -1)))
SUMS = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
"""Sums may be reordered. -ffast-math would link code that flushes denormals to zero in this process."""
COMMON = ("-O3", "-march=native", *SUMS, "-shared", "-fPIC")
COMPILE_SECONDS = 300

SOURCE = """\
static float padded[{N}][{C}][{PH}][{PW}];

void convolution(const float x[restrict {N}][{C}][{H}][{W}], const float w[restrict {K}][{CG}][{R}][{S}],
                 const float b[restrict {K}], float y[restrict {N}][{K}][{OH}][{OW}]) {{
  for (int n = 0; n < {N}; n++)
    for (int c = 0; c < {C}; c++)
      for (int i = 0; i < {H}; i++)
        for (int j = 0; j < {W}; j++)
          padded[n][c][i + {TOP}][j + {LEFT}] = x[n][c][i][j];
  for (int n = 0; n < {N}; n++)
    for (int g = 0; g < {G}; g++)
      for (int k = 0; k < {KG}; k++)
        for (int i = 0; i < {OH}; i++)
          for (int j = 0; j < {OW}; j++) {{
            y[n][g * {KG} + k][i][j] = b[g * {KG} + k];
            for (int c = 0; c < {CG}; c++)
              for (int r = 0; r < {R}; r++)
                for (int s = 0; s < {S}; s++)
                  y[n][g * {KG} + k][i][j] +=
                      padded[n][g * {CG} + c][i * {SH} + r * {DH}][j * {SW} + s * {DW}]
                      * w[g * {KG} + k][c][r][s];
          }}
}}
"""


@dataclass(frozen=True, eq=False)
class Convolution:
    """A model that is one 2-D convolution: its sizes under the names in SOURCE, weights and bias."""

    sizes: dict[str, int]
    weights: np.ndarray
    bias: np.ndarray

    @property
    def source(self) -> str:
        return SOURCE.format(**self.sizes)

    @property
    def result(self) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in ("N", "K", "OH", "OW"))


def single_convolution(network: Network) -> Convolution:
    """UnsupportedError for any other model."""
    graph = network.model.graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    node = graph.node[0] if len(graph.node) == 1 else None
    if node is None or node.op_type != "Conv" or not set(node.input[1:]) <= set(tensors):
        raise UnsupportedError("not a single convolution")
    x, w = network.input_shape(node.input[0]), tensors[node.input[1]]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if w.ndim != 4 or w.dtype != np.float32 or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise UnsupportedError("not a single convolution in f32 over two dimensions with explicit padding")
    (sh, sw), (dh, dw) = given.get("strides", (1, 1)), given.get("dilations", (1, 1))
    top, left, bottom, right = given.get("pads", (0, 0, 0, 0))
    groups = given.get("group", 1)
    (n, c, h, width), (k, cg, r, s) = x, w.shape
    tall, wide = h + top + bottom, width + left + right
    sizes = {
        **{"N": n, "C": c, "H": h, "W": width, "K": k, "CG": cg, "R": r, "S": s, "G": groups},
        **{"KG": k // groups, "TOP": top, "LEFT": left, "PH": tall, "PW": wide},
        **{"SH": sh, "SW": sw, "DH": dh, "DW": dw},
        **{"OH": (tall - dh * (r - 1) - 1) // sh + 1, "OW": (wide - dw * (s - 1) - 1) // sw + 1},
    }
    bias = tensors[node.input[2]] if len(node.input) > 2 else np.zeros(k, np.float32)
    return Convolution(sizes, np.ascontiguousarray(w), np.ascontiguousarray(bias))


class LoopsRunner(Runner):
    def __init__(self, library: Path, convolution: Convolution, network: Network):
        self.function = ctypes.CDLL(str(library)).convolution
        self.convolution, self.network = convolution, network
        self.result = np.zeros(convolution.result, np.float32)

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        (name,) = self.network.input_names
        arrays = (np.ascontiguousarray(inputs[name]), self.convolution.weights, self.convolution.bias)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, self.result)]
        self.bound = arrays  # which the pointers need
        function = self.function
        return lambda: function(*pointers)

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        return {self.network.output_names[0]: self.result.copy()}


@dataclass(frozen=True)
class CompiledLoops(Peer):
    """`options` are the compiler's beside COMMON, `threaded` those that take the number of threads as {}."""

    name: str
    compilers: tuple[str, ...]
    options: tuple[str, ...]
    threaded: tuple[str, ...]

    def compiler(self) -> str | None:
        return next((found for name in self.compilers if (found := shutil.which(name))), None)

    def available(self) -> str | None:
        return None if self.compiler() else f"not installed: {self.compilers[0]}"

    def version(self) -> str:
        first = _run([self.compiler() or "", "--version"]).stdout.partition("\n")[0]
        found = re.search(r"\d+\.\d+\.\d+", first)
        return found.group() if found else first

    def prepare(self, network: Network, threads: int) -> Runner:
        convolution = single_convolution(network)
        parallel = [option.format(threads) for option in self.threaded] if threads > 1 else []
        with tempfile.TemporaryDirectory(prefix="burnish-loops-") as folder:
            source, library = Path(folder, "convolution.c"), Path(folder, "convolution.so")
            source.write_text(convolution.source)
            files = [str(source), "-o", str(library)]
            done = _run([self.compiler() or "", *COMMON, *self.options, *files, *parallel])
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
                raise ToolError(f"{self.name} (exit {done.returncode}): {lines[0].strip()}")
            return LoopsRunner(library, convolution, network)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)


def compiled_loops(name: str) -> CompiledLoops:
    """The peer called gcc, graphite or polly."""
    automatic = ("-ftree-parallelize-loops={}",)
    return {
        "gcc": CompiledLoops("gcc", ("gcc",), (), automatic),
        "graphite": CompiledLoops("graphite", ("gcc",), ("-floop-nest-optimize", "-fgraphite-identity"),
                                  ("-floop-parallelize-all", *automatic)),
        "polly": CompiledLoops("polly", CLANGS, ("-mllvm", "-polly", "-mllvm", "-polly-vectorizer=stripmine"),
                               ("-mllvm", "-polly-parallel", "-mllvm", "-polly-num-threads={}", "-lgomp")),
    }[name]  # fmt: skip
