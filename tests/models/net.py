"""ONNX models by hand, a layer a line, as frameworks export them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 21


class Net:
    """A model under construction. Tensors are their names; weights follow from the seed, about 1 in size.
    Real numbers are `floats`."""

    def __init__(self, seed: int = 0, floats: Any = np.float32):
        self.floats = floats
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, np.ndarray] = {}

    def input(self, *shape: int, name: str = "", value: Any = None) -> str:
        name = name or f"x{len(self.inputs)}"
        data = self.rng.standard_normal(shape).astype(self.floats) if value is None else np.asarray(value)
        self.feeds[name] = data
        code = helper.np_dtype_to_tensor_dtype(data.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, code, data.shape))
        return name

    def const(self, value: Any, dtype: Any = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.floats), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> str:
        return self.const(self.rng.standard_normal(shape) * scale + shift)

    def ops(self, kind: str, *inputs: str, outs: int = 1, name: str = "", **attributes: Any) -> list[str]:
        here = name or f"{kind.lower()}{len(self.nodes)}"
        made = [here] if outs == 1 else [f"{here}_{i}" for i in range(outs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=here, **attributes))
        return made

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        return self.ops(kind, *inputs, name=name, **attributes)[0]

    def output(self, *values: str) -> None:
        self.outputs += [onnx.ValueInfoProto(name=v) for v in values]

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "net", self.inputs, self.outputs, self.weights, value_info=self.infos
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

    # --- layers, as torch.nn calls them ------------------------------------------------------------------

    def conv(
        self,
        x: str,
        cin: int,
        cout: int,
        kernel: int | Sequence[int] = 3,
        bias: bool = True,
        **attributes: Any,
    ) -> str:
        """Kernels are square in 2-D, or given for each axis; `pad` is the same on every side."""
        sizes = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
        group = attributes.get("group", 1)
        fan = cin // group * int(np.prod(sizes))
        weights = self.normal(cout, cin // group, *sizes, scale=fan**-0.5)
        for key in ("stride", "dilation"):
            if key in attributes:
                attributes[key + "s"] = [attributes.pop(key)] * len(sizes)
        if "pad" in attributes:
            attributes["pads"] = [attributes.pop("pad")] * (2 * len(sizes))
        extra = [self.normal(cout, scale=0.3)] if bias else []
        return self.op("Conv", x, weights, *extra, **attributes)

    def conv_transpose(self, x: str, cin: int, cout: int, kernel: Sequence[int], **attributes: Any) -> str:
        group = attributes.get("group", 1)
        weights = self.normal(cin, cout // group, *kernel, scale=(cin // group * 2) ** -0.5)
        return self.op("ConvTranspose", x, weights, self.normal(cout, scale=0.3), **attributes)

    def bn(self, x: str, channels: int) -> str:
        scale, shift, mean = (self.normal(channels, scale=0.2, shift=s) for s in (1.0, 0.0, 0.0))
        variance = self.const(self.rng.uniform(0.5, 1.5, channels))
        return self.op("BatchNormalization", x, scale, shift, mean, variance)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def conv_bn_relu(self, x: str, cin: int, cout: int, kernel: int = 3, **attributes: Any) -> str:
        return self.relu(self.bn(self.conv(x, cin, cout, kernel, bias=False, **attributes), cout))

    def linear(self, x: str, cin: int, cout: int) -> str:
        product = self.op("MatMul", x, self.normal(cin, cout, scale=cin**-0.5))
        return self.op("Add", product, self.normal(cout, scale=0.3))

    def layer_norm(self, x: str, size: int) -> str:
        scale, shift = self.normal(size, scale=0.2, shift=1.0), self.normal(size, scale=0.2)
        return self.op("LayerNormalization", x, scale, shift, axis=-1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def concat(self, *values: str, axis: int = 1) -> str:
        return self.op("Concat", *values, axis=axis)

    def split(self, x: str, *sizes: int, axis: int = 1) -> list[str]:
        return self.ops("Split", x, self.ints(*sizes), outs=len(sizes), axis=axis)

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        return self.op("Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(step))

    def mean(self, x: str, *axes: int, keepdims: int = 1) -> str:
        return self.op("ReduceMean", x, self.ints(*axes), keepdims=keepdims)

    def gelu(self, x: str) -> str:
        gate = self.op("Add", self.op("Erf", self.op("Div", x, self.const(2**0.5))), self.const(1.0))
        return self.op("Mul", self.op("Mul", x, gate), self.const(0.5))

    def classifier(self, x: str, channels: int, classes: int) -> str:
        flat = self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
        weights = self.normal(classes, channels, scale=channels**-0.5)
        return self.op("Gemm", flat, weights, self.normal(classes, scale=0.1), transB=1)

    def attention(self, x: str, batch: int, length: int, width: int, heads: int, mask: str = "") -> str:
        each = width // heads

        def head() -> str:
            return self.transpose(
                self.reshape(self.linear(x, width, width), batch, length, heads, each), 0, 2, 1, 3
            )

        q, k, v = head(), head(), head()
        scores = self.op("MatMul", q, self.transpose(k, 0, 1, 3, 2))
        scores = self.op("Div", scores, self.const(each**0.5))
        if mask:
            scores = self.op("Add", scores, mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        merged = self.reshape(self.transpose(mixed, 0, 2, 1, 3), batch, length, width)
        return self.linear(merged, width, width)
