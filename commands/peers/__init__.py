"""The libraries that `burnish bench` can compare with, one file and one line of a table here each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from ...errors import InputError
from .arm_compute_peer import LAYOUTS, ArmCompute
from .base import Network, Peer, Runner
from .burnish_peer import Burnish
from .emulated import EmulatedBurnish, EmulatedLiteRT, EmulatedOnnxRuntime, EmulatedPeer, System
from .litert_peer import LiteRT
from .loops_peer import compiled_loops
from .ncnn_peer import Ncnn
from .onnxruntime_peer import OnnxRuntime
from .openvino_peer import OpenVino
from .torch_cuda_peer import WAYS, TorchCuda
from .torch_peer import Torch

__all__ = [
    "Burnish",
    "EmulatedBurnish",
    "EmulatedPeer",
    "Network",
    "OnnxRuntime",
    "Peer",
    "Runner",
    "System",
    "find",
    "find_cuda",
    "find_emulated",
]

Files = Mapping[str, Path]
"""Names of networks → .tflite files."""

DEFAULT = ("onnxruntime", "openvino")
HOST: dict[str, Callable[[Files], list[Peer]]] = {
    "onnxruntime": lambda tflite: [OnnxRuntime()],
    "openvino": lambda tflite: [OpenVino(), OpenVino(bf16=True)],
    "torch": lambda tflite: [Torch(), Torch(compiled=True)],
    "ncnn": lambda tflite: [Ncnn()],
    "litert": lambda tflite: [LiteRT(tflite)],
    "gcc": lambda tflite: [compiled_loops("gcc")],
    "graphite": lambda tflite: [compiled_loops("graphite")],
    "polly": lambda tflite: [compiled_loops("polly")],
}
"""On this machine's CPU: openvino in float32 and in its own default precision, torch eager and by inductor;
from gcc on, models that are one convolution as loops in C."""

EMULATED: dict[str, Callable[[System, Files], list[EmulatedPeer]]] = {
    "onnxruntime": lambda system, tflite: [EmulatedOnnxRuntime(system)],
    "litert": lambda system, tflite: [EmulatedLiteRT(system, tflite)],
    "arm-compute": lambda system, tflite: [ArmCompute(system, layout) for layout in LAYOUTS],
}
"""Of CPUs that this machine is not."""


def _torch(kinds: Sequence[str], ways: Sequence[str] = WAYS) -> list[TorchCuda]:
    return [TorchCuda(way, kind) for kind in dict.fromkeys(kinds) for way in ways]


CUDA: dict[str, Callable[[Sequence[str]], list[TorchCuda]]] = {
    "torch": lambda kinds: _torch(("f32", "tf32", *kinds)),
    "torch-f16": lambda kinds: _torch(("f16",)),
    **{f"torch-{way}": partial(_torch, ways=(way,)) for way in WAYS},
}
"""On NVIDIA GPUs, in the precisions that are asked for: "torch" is eager, CUDA graph, compiled and
max-autotune, always in float32, strict and with products rounded to TF32, too; "torch-f16" those in float16
alone."""


def find(names: Sequence[str] = DEFAULT, tflite: Files | None = None) -> list[Peer]:
    """Peers by name, installed or not; "all" stands for every one of them.

    Giving a .tflite file adds LiteRT. InputError for another name.
    """
    wanted = _wanted((*names, "litert") if tflite else names, HOST)
    return [peer for name in wanted for peer in HOST[name](tflite or {})]


def find_emulated(names: Sequence[str], system: System, tflite: Files | None = None) -> list[EmulatedPeer]:
    """As `find`, of what runs under an emulator."""
    wanted = _wanted((*names, "litert") if tflite else names, EMULATED, " under an emulator")
    return [peer for name in wanted for peer in EMULATED[name](system, tflite or {})]


def find_cuda(names: Sequence[str] = ("torch",), precisions: Sequence[str] = ("f32",)) -> list[Peer]:
    """As `find`, on an NVIDIA GPU, in those of the `precisions` that torch has."""
    wanted = _wanted(("torch", "torch-f16") if "all" in names else names, CUDA, " on an NVIDIA GPU")
    kinds = [kind for kind in precisions if kind in ("f32", "tf32", "f16")]
    found = [peer for name in wanted for peer in CUDA[name](kinds)]
    return list({peer.name: peer for peer in found}.values())


def _wanted(names: Sequence[str], known: Collection[str], where: str = "") -> list[str]:
    """Each name once; "all" stands for all that are known."""
    wanted = list(dict.fromkeys(known if "all" in names else names))
    for name in wanted:
        if name not in known:
            raise InputError(f"no peer '{name}'{where}: choose from {', '.join(known)}, all")
    return wanted
