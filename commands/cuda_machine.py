"""What the NVIDIA GPU of this machine is, and the limits that a kernel there can be held against, measured.

torch measures: its copies and its products of large matrices are those of CUDA's own libraries.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..compiler.cuda_device import CudaDevice

COPY_BYTES = 1 << 30
MATRIX = 8192  # rows and columns
TRIES = 8
LOADED = 3.0  # seconds of work while the clocks are asked for, which takes up to one
CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem"
PRECISIONS = ("f32", "tf32", "f16")


@dataclass(frozen=True)
class CudaMachine:
    """Rates by precision, in operations (a multiply-add is two). `reason` says why there are none."""

    name: str = ""  # with architecture and driver
    clocks: str = ""  # while it multiplied matrices
    copy_gbs: float | None = None  # bytes read and written, GB/s
    gflops: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def describe(self) -> list[str]:
        about = [f"GPU: {self.name}; {self.clocks}"] if self.name else []
        if self.reason is not None:
            return [*about, f"copies and matrix products of the GPU: not measured: {self.reason}"]
        rates = ", ".join(f"{name} {rate / 1e3:.3g}" for name, rate in self.gflops.items())
        return [*about, f"measured on the GPU: copy {self.copy_gbs:.0f} GB/s; matrix product {rates} TFLOP/s"]


def measure_cuda(device: CudaDevice) -> CudaMachine:
    """Takes some seconds. What torch cannot measure here is missing, with the reason."""
    if importlib.util.find_spec("torch") is None:
        return CudaMachine(str(device), clocks(device), reason="torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return CudaMachine(str(device), clocks(device), reason=f"torch {torch.__version__} finds no GPU")
    return measure_with(torch, device)


def measure_with(torch: Any, device: CudaDevice) -> CudaMachine:
    """`torch` is the library."""
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    copied = 2 * COPY_BYTES / _seconds(torch, lambda: target.copy_(source)) / 1e9
    gflops: dict[str, float] = {}
    found = ""
    for precision, product in _products(torch):
        seconds = _seconds(torch, product)
        gflops[precision] = 2 * MATRIX**3 / seconds / 1e9
        for _ in range(round(LOADED / seconds) if precision == "f32" else 0):
            product()  # work that nobody waits for yet
        found = found or clocks(device)
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return CudaMachine(str(device), found, copied, gflops)


def _products(torch: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    for precision in PRECISIONS:
        dtype = torch.float16 if precision == "f16" else torch.float32
        a, b = (torch.randn(MATRIX, MATRIX, dtype=dtype, device="cuda") for _ in range(2))
        settings.allow_tf32 = precision == "tf32"
        yield precision, partial(torch.mm, a, b)
    settings.allow_tf32 = before


def _seconds(torch: Any, work: Callable[[], object]) -> float:
    """The fastest of a few tries, by the GPU's clock, after two that do not count."""
    times = []
    for _ in range(2 + TRIES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times[2:])


def clocks(device: CudaDevice) -> str:
    """What nvidia-smi says at this moment; else the driver's highest."""
    which = ["-i", device.bus] if device.bus else []
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits", *which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        sm, most_sm, memory, most_memory = (part.strip() for part in done.stdout.splitlines()[0].split(","))
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return f"clocks at most {device.clock_mhz} MHz, of the memory {device.memory_mhz} MHz"
    return f"clocks {sm} of {most_sm} MHz, of the memory {memory} of {most_memory} MHz"
