"""ONNX Runtime, CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .base import Arrays, Network, Peer, Runner


class OnnxRuntimeRunner(Runner):
    def __init__(self, session: Any, network: Network):
        self.session = session
        self.names = network.output_names
        self.binding: Any = None
        self.bound: dict[str, np.ndarray] = {}

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        import onnxruntime

        results = self.session.run(list(self.names), dict(inputs))
        self.bound = {name: np.empty_like(value) for name, value in zip(self.names, results)}
        self.binding = self.session.io_binding()
        keep = onnxruntime.OrtValue.ortvalue_from_numpy
        for name, array in inputs.items():
            self.binding.bind_ortvalue_input(name, keep(np.asarray(array, order="C")))
        for name, array in self.bound.items():
            self.binding.bind_ortvalue_output(name, keep(array))
        run, binding = self.session.run_with_iobinding, self.binding
        return lambda: run(binding)

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        values = self.binding.copy_outputs_to_cpu()
        return dict(zip(self.names, values))

    def close(self) -> None:
        self.binding = self.session = None


class OnnxRuntime(Peer):
    """All graph optimisations, one inference at a time, threads that spin between calls (its defaults)."""

    name = "onnxruntime"
    packages = ("onnxruntime",)
    modules = ("onnxruntime",)

    def prepare(self, network: Network, threads: int) -> Runner:
        return self._session(network, threads, optimize=True)

    def reference(self, network: Network) -> Runner:
        """One thread and no graph optimisation: what the contestants' outputs are compared with."""
        return self._session(network, 1, optimize=False)

    def _session(self, network: Network, threads: int, optimize: bool) -> Runner:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if optimize else "0")
        session = onnxruntime.InferenceSession(
            network.serialized, options, providers=["CPUExecutionProvider"]
        )
        return OnnxRuntimeRunner(session, network)
