"""A small writer of ONNX networks that look like what a training framework exports.

Random weights must keep activations at a sane scale through any depth, and keep them depending on the input:
filters are centred to mean zero and scaled for the ReLU before them (Brock et al. 2021, "scaled weight
standardization"), or scaled only (He et al. 2015) where a filter sees one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17
IR_VERSION = 8
# 1 / variance of max(z, 0) for normal z
AFTER_RELU = 2 / (1 - 1 / np.pi)


def random_filters(rng: np.random.Generator, shape: tuple[int, ...], gain: float = AFTER_RELU) -> np.ndarray:
    """float32 weights (out, in, …): each output's are centred over the rest, unless `in` is 1, with variance
    gain / fan-in; `gain` is 1 / variance of the inputs."""
    fan_in = int(np.prod(shape[1:]))
    values = rng.standard_normal(shape, np.float32)
    if shape[1] > 1:
        values -= values.mean(axis=tuple(range(1, len(shape))), keepdims=True)
    elif gain == AFTER_RELU:
        gain = 2.0  # uncentred filters also see the mean of max(z, 0)
    values *= np.float32((gain / fan_in) ** 0.5)
    return values


class NetBuilder:
    """Collects nodes and seeded weights; `model()` gives the finished, checked network.

    Every method that adds a node takes a `scope` such as "layer1.0.conv1", which names the node
    ("/layer1.0.conv1/Conv") and its weights ("layer1.0.conv1.weight"), and returns the node's first output.
    """

    def __init__(self, name: str, seed: int):
        self._name = name
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._node_names: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: int = onnx.TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> str:
        """Declares a float32 graph output; the node that computes it is given `outputs=(name,)`."""
        self._outputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        return name

    def node(
        self, op: str, inputs: Sequence[str], scope: str = "", *, outputs: Sequence[str] = (), **attrs: Any
    ) -> str:
        prefix = f"/{scope}/{op}" if scope else f"/{op}"
        count = self._node_names.get(prefix, 0)
        self._node_names[prefix] = count + 1
        name = f"{prefix}_{count}" if count else prefix
        outputs = list(outputs) or [f"{name}_output_0"]
        self._nodes.append(helper.make_node(op, list(inputs), outputs, name=name, **attrs))
        return outputs[0]

    def constant(self, value: Any, dtype: Any, scope: str = "") -> str:
        """A Constant node, as exports use for shapes, axes and bounds."""
        return self.node("Constant", [], scope, value=numpy_helper.from_array(np.array(value, dtype)))

    def weight(self, name: str, values: np.ndarray) -> str:
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        values = self._rng.standard_normal(tuple(shape), np.float32)
        values *= np.float32(std)
        return self.weight(name, values + np.float32(mean) if mean else values)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        return self.weight(name, self._rng.uniform(low, high, tuple(shape)))

    def conv(
        self,
        x: str,
        scope: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = False,
        gain: float = AFTER_RELU,
    ) -> str:
        """A square 2-D convolution of weights (out, in / groups, kernel, kernel); `channels` is (in, out)."""
        c_in, c_out = channels
        shape = (c_out, c_in // groups, kernel, kernel)
        inputs = [x, self.weight(f"{scope}.weight", random_filters(self._rng, shape, gain))]
        if bias:
            inputs.append(self.normal(f"{scope}.bias", (c_out,), 0.1))
        return self.node(
            "Conv",
            inputs,
            scope,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel] * 2,
            pads=[pad] * 4,
            strides=[stride] * 2,
        )

    def batch_norm(self, x: str, scope: str, channels: int, gain: float = 1.0) -> str:
        """Inference batch norm whose scale is around 0.9 `gain`, with statistics that no pass can ignore."""
        shape = (channels,)
        inputs = [
            x,
            self.uniform(f"{scope}.weight", shape, 0.6 * gain, 1.2 * gain),
            self.normal(f"{scope}.bias", shape, 0.1),
            self.normal(f"{scope}.running_mean", shape, 0.2),
            self.uniform(f"{scope}.running_var", shape, 0.6, 1.4),
        ]
        return self.node("BatchNormalization", inputs, scope, epsilon=1e-5, momentum=0.9)

    def linear(
        self, x: str, scope: str, features: tuple[int, int], gain: float = 1.0, outputs: Sequence[str] = ()
    ) -> str:
        """Gemm with weights stored (out, in), on x of shape (batch, in); `features` is (in, out)."""
        f_in, f_out = features
        weight = self.weight(f"{scope}.weight", random_filters(self._rng, (f_out, f_in), gain))
        bias = self.normal(f"{scope}.bias", (f_out,), 0.1)
        return self.node("Gemm", [x, weight, bias], scope, outputs=outputs, alpha=1.0, beta=1.0, transB=1)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="burnish")
