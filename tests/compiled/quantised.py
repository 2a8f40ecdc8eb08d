"""A network of quantised convolutions as ONNX's tools write it, against onnxruntime."""

from __future__ import annotations

import burnish
import numpy as np
import onnx
import onnxruntime
from burnish.compiler.target import get_target
from onnx import TensorProto, helper, numpy_helper

SIZE = 9
SELDOM = 0.04
"""The share of values that may be a step off: one of the 32 means."""
BYTES = ("relu", "sum", "grouped", "mean")
"""Values whose eight bits are outputs."""


def network(channels: int) -> onnx.ModelProto:
    """Convolutions of 3×3: two and between them one of each channel, the last with the first's input added;
    one of groups, pooling, a product.

    Weights have seven bits: onnxruntime's sums of two products saturate at 16 bits on CPUs without VNNI.
    """
    rng = np.random.default_rng(5)
    constants: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def const(name: str, array: np.ndarray) -> str:
        constants[name] = array
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def quantised(x: str, scale: float, zero: int) -> str:
        """x through eight bits."""
        by = [const(f"{x}.scale", np.float32(scale)), const(f"{x}.zero", np.uint8(zero))]
        return node("DequantizeLinear", [node("QuantizeLinear", [x, *by], f"{x}.q"), *by], f"{x}.real")

    def conv(x: str, name: str, outs: int, ins: int, group: int = 1) -> str:
        weights = const(f"{name}.w", rng.integers(-63, 64, (outs, ins, 3, 3)).astype(np.int8))
        scales = rng.uniform(0.001, 0.003, outs).astype(np.float32)
        by = [const(f"{name}.scales", scales), const(f"{name}.zeros", np.zeros(outs, np.int8))]
        w = node("DequantizeLinear", [weights, *by], f"{name}.weights", axis=0)
        bias = const(f"{name}.bias", rng.normal(size=outs).astype(np.float32))
        return node("Conv", [x, w, bias], name, pads=[1, 1, 1, 1], group=group)

    x = quantised("x", 0.03, 120)
    first = quantised(node("Relu", [conv(x, "first", channels, channels)], "relu"), 0.1, 0)
    deep = quantised(conv(first, "deep", channels, 1, channels), 0.1, 110)
    second = conv(deep, "second", channels, channels)
    added = quantised(node("Add", [second, x], "sum"), 0.2, 100)
    grouped = quantised(conv(added, "grouped", 16, channels // 2, 2), 0.3, 90)
    pooled = quantised(node("GlobalAveragePool", [grouped], "mean"), 0.1, 100)
    flat = node("Flatten", [pooled], "flat")
    by = [const("m.scale", np.float32(0.01)), const("m.zero", np.int8(0))]
    matrix = node(
        "DequantizeLinear", [const("m", rng.integers(-63, 64, (7, 16)).astype(np.int8)), *by], "m.r"
    )
    node("Gemm", [flat, matrix], "y", transB=1)
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, channels, SIZE, SIZE])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 7]),
            *(helper.make_tensor_value_info(f"{name}.q", TensorProto.UINT8, None) for name in BYTES),
        ],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(target: str, plan: str) -> None:
    """Eight bits may differ by one, seldom; what is multiplied as words where one instruction does it."""
    channels = 24
    model = network(channels).SerializeToString()
    x = np.random.default_rng(6).normal(size=(2, channels, SIZE, SIZE)).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    y, *expected = session.run(None, {"x": x})
    module = burnish.compile(model, target=target, threads=2, plan=plan)
    dots = [sum(kind in step.kernel for step in module.steps) for kind in ("dotconv", "dotdepthwise")]
    assert dots == ([3, 1] if get_target(target).fast_dot else [0, 0])
    result = module.run({"x": x})
    for name, bytes in zip(BYTES, expected):
        steps = np.abs(result[f"{name}.q"].astype(int) - bytes.astype(int))
        assert steps.max() <= 1 and (steps > 0).mean() <= SELDOM, name
    np.testing.assert_allclose(result["y"], y, atol=2 * 0.1 * 0.63)  # a step of two means
