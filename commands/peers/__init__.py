"""The libraries that `burnish bench` can compare with, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import InputError
from .arm_compute_peer import LAYOUTS, ArmCompute
from .base import Network, Peer, Runner
from .burnish_peer import Burnish
from .emulated import (
    EmulatedBurnish,
    EmulatedLiteRT,
    EmulatedOnnxRuntime,
    EmulatedPeer,
    EmulatedProgram,
    System,
)
from .litert_peer import LiteRT
from .loops_peer import compiled_loops
from .ncnn_peer import Ncnn
from .onnxruntime_peer import OnnxRuntime
from .openvino_peer import OpenVino
from .torch_cuda_peer import WAYS, TorchCuda
from .torch_peer import Torch

__all__ = [
    "ArmCompute",
    "Burnish",
    "EmulatedBurnish",
    "EmulatedLiteRT",
    "EmulatedOnnxRuntime",
    "EmulatedPeer",
    "EmulatedProgram",
    "LiteRT",
    "Ncnn",
    "Network",
    "OnnxRuntime",
    "OpenVino",
    "Peer",
    "Runner",
    "System",
    "Torch",
    "TorchCuda",
    "find",
    "find_cuda",
    "find_emulated",
]

DEFAULT = ("onnxruntime", "openvino")
LOOPS = ("gcc", "graphite", "polly")
NAMES = ("onnxruntime", "openvino", "torch", "ncnn", "litert", *LOOPS)

CUDA = ("torch", "torch-f16", *(f"torch-{way}" for way in WAYS))
"""On NVIDIA GPUs."""

EMULATED = ("onnxruntime", "litert", "arm-compute")
"""Of CPUs that this machine is not."""


def find(names: Sequence[str] = DEFAULT, tflite: Mapping[str, str | Path] | None = None) -> list[Peer]:
    """Peers by name, installed or not; "all" stands for every one of them.

    "openvino" gives two peers (float32, and its own default precision), "torch" two (eager, inductor). "gcc",
    "graphite" and "polly" run models that are one convolution as loops in C.
    `tflite` maps names of networks to .tflite files; giving one adds LiteRT. InputError for another name.
    """
    wanted = list(dict.fromkeys(NAMES if "all" in names else names))
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise InputError(f"no peer '{unknown[0]}': choose from {', '.join(NAMES)}, all")
    if tflite and "litert" not in wanted:
        wanted.append("litert")
    made: dict[str, list[Peer]] = {
        "onnxruntime": [OnnxRuntime()],
        "openvino": [OpenVino(), OpenVino(bf16=True)],
        "torch": [Torch(), Torch(compiled=True)],
        "ncnn": [Ncnn()],
        "litert": [LiteRT(tflite or {})],
        **{name: [compiled_loops(name)] for name in LOOPS},
    }
    return [peer for name in wanted for peer in made[name]]


def find_emulated(
    names: Sequence[str], system: System, tflite: Mapping[str, Path] | None = None
) -> list[EmulatedPeer]:
    """As `find`, of what runs under an emulator. "arm-compute" gives a peer for each layout."""
    wanted = list(dict.fromkeys(EMULATED if "all" in names else names))
    unknown = [name for name in wanted if name not in EMULATED]
    if unknown:
        raise InputError(f"no peer '{unknown[0]}' under an emulator: choose from {', '.join(EMULATED)}, all")
    if tflite and "litert" not in wanted:
        wanted.append("litert")
    made: dict[str, list[EmulatedPeer]] = {
        "onnxruntime": [EmulatedOnnxRuntime(system)],
        "litert": [EmulatedLiteRT(system, tflite or {})],
        "arm-compute": [ArmCompute(system, layout) for layout in LAYOUTS],
    }
    return [peer for name in wanted for peer in made[name]]


def find_cuda(names: Sequence[str] = CUDA[:1], precisions: Sequence[str] = ("f32",)) -> list[Peer]:
    """As `find`, on an NVIDIA GPU: "torch" gives eager, CUDA graph, compiled and max-autotune in float32,
    strict and with products rounded to TF32, and in float16 if that is among the `precisions`; "torch-f16"
    those in float16 alone; "torch-graph" and others one of them in the `precisions` that torch has, too."""
    wanted = list(dict.fromkeys(CUDA[:2] if "all" in names else names))
    unknown = [name for name in wanted if name not in CUDA]
    if unknown:
        raise InputError(f"no peer '{unknown[0]}' on an NVIDIA GPU: choose from {', '.join(CUDA)}, all")
    own = [kind for kind in precisions if kind in ("f32", "tf32", "f16")]
    made = {f"torch-{way}": [(way, kind) for kind in own] for way in WAYS}
    made["torch"] = [(way, kind) for kind in dict.fromkeys(("f32", "tf32", *own)) for way in WAYS]
    made["torch-f16"] = [(way, "f16") for way in WAYS]
    return [TorchCuda(*one) for one in dict.fromkeys(one for name in wanted for one in made[name])]
