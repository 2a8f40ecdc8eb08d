"""OpenVINO, CPU device: told to use float32, and once more as it comes (bfloat16 where the CPU has it)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ToolError
from ...op_tuner.cores import allowed_cores
from .base import PRECISION_TOLERANCE, Arrays, Network, Peer, Runner


class OpenVinoRunner(Runner):
    def __init__(self, compiled: Any, network: Network):
        self.names = network.output_names
        self.ports = {port.get_any_name(): port for port in compiled.inputs}
        self.compiled = compiled
        self.request = compiled.create_infer_request()
        self.tensors: list[Any] = []

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        import openvino

        self.tensors = []
        for name, array in inputs.items():
            if name not in self.ports:
                raise ToolError(f"openvino dropped the input '{name}', which no output depends on")
            tensor = openvino.Tensor(np.asarray(array, order="C"), shared_memory=True)
            self.request.set_tensor(self.ports[name], tensor)
            self.tensors.append(tensor)
        infer = self.request.infer
        return lambda: infer(share_outputs=True)

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        ports = self.compiled.outputs
        return {name: self.request.get_tensor(port).data.copy() for name, port in zip(self.names, ports)}

    def close(self) -> None:
        self.tensors = []
        self.request = self.compiled = None


class OpenVino(Peer):
    packages = ("openvino",)
    modules = ("openvino",)

    def __init__(self, bf16: bool = False):
        self.name = "openvino-bf16" if bf16 else "openvino"
        self.precision = "bf16" if bf16 else "f32"
        self.tolerance = PRECISION_TOLERANCE["f32"]
        if bf16:  # it rounds every value between operators, too: 5e-2 is not unusual (docs/performance.md)
            self.tolerance = 0.1

    def prepare(self, network: Network, threads: int) -> Runner:
        import openvino

        core = openvino.Core()
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if self.precision == "f32":
            options["INFERENCE_PRECISION_HINT"] = "f32"
        if threads > len(allowed_cores()):  # else it leaves out those that share a core
            options["ENABLE_HYPER_THREADING"] = True
        compiled = core.compile_model(core.read_model(network.serialized), "CPU", options)
        used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        wanted = {"f32": ("f32", "float32"), "bf16": ("bf16", "bfloat16")}[self.precision]
        if used not in wanted:
            raise ToolError(f"openvino computes in {used} on this CPU, not in {self.precision}")
        return OpenVinoRunner(compiled, network)
