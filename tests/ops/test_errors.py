"""What operators and import rules refuse, and what the message says."""

import numpy as np
import onnx
import pytest
from burnish.compiler.ir.types import TensorType
from burnish.compiler.ops.base import Op
from burnish.compiler.ops.elementwise import Binary, Unary, Where
from burnish.compiler.ops.indexing import Gather, GatherElements, ScatterND
from burnish.compiler.ops.matmul import Einsum, MatMul
from burnish.compiler.ops.movement import Concat, Pad, Reshape, Slice, Transpose
from burnish.compiler.ops.reduction import ArgReduce, Reduce, Softmax
from burnish.compiler.ops.sorting import TopK
from burnish.errors import ModelError, NeedsValueError, UnsupportedError
from burnish.frontends.onnx.importer import import_onnx
from burnish.frontends.onnx.rules_matmul import explicit_equation
from onnx import TensorProto, helper

from .one_node import Node, f32, floats, ints

REFUSED = [
    (Unary("exp"), ["i32[3]"], "exp is not defined on i32"),
    (Binary("add"), ["f32[3]", "f32[4]"], r"\[3\] and \[4\] do not broadcast"),
    (Binary("add"), ["f32[3]", "f64[3]"], "one dtype"),
    (Where(), ["f32[3]", "f32[3]", "f32[3]"], "must be bool"),
    (MatMul(), ["f32[2,3]", "f32[4,5]"], "inner sizes 3 and 4 differ"),
    (MatMul(), ["f32[3]", "f32[3,5]"], "matrices are needed"),
    (Einsum("ij,jk->ik"), ["f32[2,3]", "f32[4,5]"], "'j' is 3 and 4"),
    (Einsum("ij->il"), ["f32[2,3]"], "letters of the result"),
    (Reshape((2, 4)), ["f32[3,3]"], r"\[3, 3\] cannot be reshaped to \[2, 4\]"),
    (Transpose((0, 0)), ["f32[2,3]"], "no permutation"),
    (Concat(0), ["f32[2,3]", "f32[2,4]"], "differ outside axis 0"),
    (Slice((4,), (2,), (1,)), ["f32[5]"], "leaves an axis of 5"),
    (Pad((-3,), (0,)), ["f32[2]"], "cut more than an axis of 2"),
    (Pad((1,), (0,), "mirror"), ["f32[2]"], "known: constant, reflect"),
    (Gather(2), ["f32[2,3]", "i64[1]"], r"give one in \[-2, 2\)"),
    (Gather(0), ["f32[2,3]", "f32[1]"], "indices must be integers"),
    (GatherElements(0), ["f32[2,3]", "i64[2,4]"], "do not fit into"),
    (ScatterND(), ["f32[4,3]", "i64[2,1]", "f32[2,2]"], r"expected \[2, 3\]"),
    (Reduce("mean", (0,)), ["i32[3]"], "mean is not defined on i32"),
    (Reduce("sum", (0, -2)), ["f32[3,2]"], "stands twice"),
    (ArgReduce("argmax", 0), ["f32[0,2]"], "no elements"),
    (Softmax(3), ["f32[2,2]"], "axis 3"),
    (TopK(0, 4), ["f32[3]"], "k is 4, but the axis has 3"),
]


@pytest.mark.parametrize(("op", "types", "message"), REFUSED, ids=lambda v: str(v))
def test_infer_refuses(op: Op, types: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        op.infer(*(TensorType.parse(t) for t in types))


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("ij, jk", [2, 2], "ij,jk->ik"),
        ("ba", [2], "ba->ab"),
        ("ii", [2], "ii->"),
        ("...ij,...jk->...ik", [4, 3], "abij,bjk->abik"),
        ("...i", [3], "abi->abi"),
        ("i...->...", [3], "iab->ab"),
    ],
)
def test_equations_are_spelt_out(equation: str, ranks: list[int], expected: str) -> None:
    assert explicit_equation(equation, ranks) == expected


def _model(node: onnx.NodeProto, **inputs: tuple[int, list[int]]) -> bytes:
    infos = [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()]
    outputs = [helper.make_tensor_value_info(o, F, ["a", "b"]) for o in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


F, I = TensorProto.FLOAT, TensorProto.INT64
NODES = [
    (
        helper.make_node("Cast", ["x"], ["y"], "c", to=TensorProto.FLOAT8E4M3FN),
        UnsupportedError,
        "float8e4m3fn",
    ),
    (helper.make_node("Gelu", ["x"], ["y"], "g", approximate="fast"), UnsupportedError, "none or tanh"),
    (helper.make_node("Reshape", ["x", "shape"], ["y"], "r"), NeedsValueError, "'shape'"),
    (helper.make_node("NonZero", ["x"], ["y"], "n"), NeedsValueError, "'x'"),
    (helper.make_node("Concat", ["x", "x"], ["y"], "k", axis=2), ModelError, "axis 2"),
    (helper.make_node("Split", ["x"], ["a", "b"], "s", axis=5, num_outputs=2), ModelError, "axis 5"),
    (helper.make_node("Split", ["x"], ["a", "b"], "s", num_outputs=10**9), ModelError, "it has 2 outputs"),
]


@pytest.mark.parametrize(("node", "error", "message"), NODES, ids=[n.op_type for n, _, _ in NODES])
def test_rules_refuse(node: onnx.NodeProto, error: type[Exception], message: str) -> None:
    inputs = {name: (I, [2]) if name == "shape" else (F, [2, 3]) for name in node.input}
    with pytest.raises(error, match=message) as raised:
        import_onnx(_model(node, **inputs))
    assert node.name in str(raised.value)
    assert "\n" not in str(raised.value)


MATRIX, KERNEL = f32(2, 3), f32(1, 1, 2)
VALUES = [
    (Node("And", (np.ones((2, 3), np.int32), np.ones((2, 3), np.int32))), "expected bool"),
    (Node("Not", (np.ones((2, 3), np.int32),)), "expected bool"),
    (Node("Reshape", (MATRIX, floats(3.7, 2))), "float32, expected integers"),
    (Node("CumSum", (MATRIX, ints(0, 1))), "2 elements, expected one"),
    (Node("OneHot", (np.ones((2, 2), np.int64), ints(3, 4), floats(0, 1))), "2 elements, expected one"),
    (Node("Gemm", (f32(2, 2, 3), f32(2, 3, 4))), "expected two matrices"),
    (Node("Gemm", (MATRIX, f32(3, 4), f32(5, 2, 4))), "does not broadcast"),
    (Node("ConvTranspose", (f32(1, 1, 3), KERNEL), {"output_padding": [-1]}), "none below 0"),
    (Node("Pad", (MATRIX, ints(0, -4, 0, 2)), {"mode": "reflect"}), "cut more"),
]


@pytest.mark.parametrize(("node", "message"), VALUES, ids=lambda v: str(v))
def test_rules_refuse_values(node: Node, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        import_onnx(node.model())
    assert "\n" not in str(raised.value)


def test_a_given_value_decides_a_shape() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], "r")
    model = _model(node, x=(F, [2, 3]), shape=(I, [2]))
    graph = import_onnx(model, values={"shape": np.array([3, -1])})
    assert graph.type("y") == TensorType.parse("f32[3,2]")
    assert graph.inputs == ("x",)
