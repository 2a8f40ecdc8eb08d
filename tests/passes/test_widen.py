"""Networks of 16-bit floats become networks of f32 that are rounded, which compute the same."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.compiler.ir.types import DTYPES, F32
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Cast, Unary
from burnish.compiler.ops.indexing import Gather, ScatterElements
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Reshape
from burnish.compiler.ops.pool import MaxPool
from burnish.compiler.ops.quantize import DequantizeLinear
from burnish.compiler.ops.reduction import Softmax
from burnish.compiler.ops.resize import Pick
from burnish.compiler.ops.sorting import TopK
from burnish.compiler.target import get_target
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.widen import PRODUCTS, widen

from .make import feed, make, op_names

RNG = np.random.default_rng(5)
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(NUMPY[dtype])


def residual(dtype: str) -> Graph:
    """Convolutions, the first of which is read twice, a pooling, a product, a softmax."""

    def body(g, x):
        def conv(x, channels, of):
            weights = (g.const(numbers(dtype, channels, of, 3, 3)), g.const(numbers(dtype, channels)))
            return g.one(Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), x, *weights)

        first = g.one(Unary("relu"), conv(x, 16, 3))
        y = g.one(Binary("add"), g.one(Unary("sigmoid"), conv(first, 16, 16)), first)
        y = g.one(MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), (4, 4)), y)
        y = g.one(MatMul(), g.one(Reshape((1, 256)), y), g.const(numbers(dtype, 256, 10)))
        return g.one(Softmax(-1), g.one(Binary("mul"), y, g.const(np.array(0.01, NUMPY[dtype]))))

    return make({"x": f"{dtype}[1,3,8,8]"}, body)


def check(before: Graph) -> Graph:
    """What `before` becomes: its interface, its numbers, products of f32."""
    after = widen(before)
    verify(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    arrays = feed(before)
    expected, actual = interpret(before, arrays), interpret(after, arrays)
    for name in before.outputs:
        assert after.types[name] == before.types[name] and actual[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(actual[name], expected[name])
    for node in after.nodes:
        assert not isinstance(node.op, PRODUCTS) or {after.types[v].dtype for v in node.reads} == {F32}
    return after


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_are_of_f32(dtype):
    before = residual(dtype)
    after = check(before)
    assert op_names(after) == [
        *("Cast", "Conv", "Rounded", "Unary", "Conv", "Rounded", "Unary", "Rounded", "Binary", "Rounded"),
        *("MaxPool", "Reshape", "MatMul", "Rounded", "Binary", "Rounded", "Softmax", "Rounded", "Cast"),
    ]


def test_what_is_rounded_in_the_model_is_rounded():
    """Exactly: an f32 that becomes an f16, and then a bf16, is neither of them before."""
    x = np.array([[1 + 2**-12, 1 + 3 * 2**-8, 70000, 1e-9]], np.float32)

    def body(g, x):
        half = g.one(Cast("f16"), x)
        product = g.one(MatMul(), half, g.const(numbers("f16", 4, 3)))
        return g.one(Cast("f32"), half), g.one(Cast("f32"), g.one(Cast("bf16"), half)), product

    before = make({"x": "f32[1,4]"}, body)
    after = widen(before)
    with np.errstate(invalid="ignore"):
        expected, actual = interpret(before, {"x": x}), interpret(after, {"x": x})
    assert list(map(np.ndarray.tolist, actual.values())) == list(map(np.ndarray.tolist, expected.values()))
    assert actual[after.outputs[0]].tolist() == [[1, 1 + 3 * 2**-8, np.inf, 0]]
    assert op_names(after).count("Rounded") == 3


def test_operators_that_say_a_type_keep_it():
    def body(g, q, scale):
        real = g.one(DequantizeLinear(to="f16"), q, scale)
        return real, g.one(MatMul(), real, g.const(numbers("f16", 3, 5)))

    after = check(make({"q": "u8[2,3]", "scale": "f16[]"}, body))
    assert op_names(after) == ["DequantizeLinear", "Cast", "MatMul", "Rounded", "Cast"]


def test_integers_that_become_narrow_are_rounded_once():
    def body(g, x):
        return g.one(MatMul(), g.one(Cast("bf16"), x), g.const(numbers("bf16", 3, 2)))

    assert op_names(check(make({"x": "i32[2,3]"}, body))) == [
        "Cast",
        "Cast",
        "MatMul",
        "Rounded",
        "Cast",
    ]


def test_of_a_table_what_is_picked_is_cast():
    def body(g, at):
        rows = g.one(Gather(0), g.const(numbers("bf16", 50, 8)), at)
        return g.one(MatMul(), rows, g.const(numbers("bf16", 8, 3)))

    before = make({"at": "i64[4]"}, body)
    after = widen(before)
    assert op_names(after) == ["Gather", "Cast", "MatMul", "Rounded", "Cast"]
    arrays = {"at": np.array([3, 49, 0, 3])}
    assert str(interpret(after, arrays)) == str(interpret(before, arrays))


def test_values_of_other_types_stay():
    """Indices, truths, and what leaves the graph as it came."""

    def body(g, x):
        y = g.one(MatMul(), x, g.const(numbers("f16", 4, 4)))
        values, places = g.emit(TopK(-1, 2), y)
        positive = g.one(Binary("gt"), y, g.const(np.array(0, np.float16)))
        return values, places, positive, g.one(Gather(0), y, g.const(np.array([2, 0]))), y, x

    check(make({"x": "f16[3,4]"}, body))


def test_graphs_that_multiply_nothing_narrow_stay():
    def body(g, x, y):
        return g.one(Binary("add"), x, x), g.one(MatMul(), y, y)

    graph = make({"x": "f16[3,4]", "y": "f32[3,3]"}, body)
    assert widen(graph) is graph


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_algorithms_are_those_of_f32(dtype):
    """Narrow floats are at the ends alone, where casts are: the last one behind the softmax."""
    graph = pipeline.optimise(residual(dtype), get_target("x86-64-v3"), 1)
    inner = {v for node in graph.nodes[1:-1] for v in (*node.reads, *node.outputs)}
    assert DTYPES[dtype] not in {graph.types[v].dtype for v in inner}
    assert "packed" in {getattr(node.op, "algorithm", "") for node in graph.nodes}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_a_convolution_makes_is_not_cast_in_its_kernel(dtype):
    """No algorithm of convolutions writes narrow floats; those of products do."""

    def body(g, x):
        y = g.one(Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), x, g.const(numbers(dtype, 32, 16, 3, 3)))
        return y, g.one(MatMul(), y, g.const(numbers(dtype, 64, 48)))

    before = make({"x": f"{dtype}[1,16,64,64]"}, body)
    graph = pipeline.optimise(before, get_target("x86-64-v3"), 1, stop_after="fuse")
    kernels = [[n.op.name for n in node.op.graph.nodes] for node in graph.nodes]
    assert kernels == [["Cast"], ["Conv", "Rounded"], ["Cast"], ["MatMul", "Rounded", "Cast"]]
    for position, algorithm in ((1, "winograd4"), (3, "packed")):
        assert algorithm in {d.algorithm for d in alternatives(graph, graph.nodes[position], 8)}


def test_what_rounds_on_the_way_stays():
    """Five times 1 added to 2048 in f16 is 2048; the sum of f32 would be 2053."""

    def body(g, x, w):
        at, ones = g.const(np.zeros((5,), np.int64)), g.const(np.ones((5,), np.float16))
        return g.one(ScatterElements(0, "add"), x, at, ones), g.one(MatMul(), w, w)

    before = make({"x": "f16[2]", "w": "f16[2,2]"}, body)
    arrays = {"x": np.array([2048, 0], np.float16), "w": np.ones((2, 2), np.float16)}
    assert interpret(widen(before), arrays)[before.outputs[0]].tolist() == [2048, 0]


def test_what_a_resize_puts_outside_is_rounded():
    def body(g, x, w):
        y = g.one(Pick((0,), 0.1), x, g.const(np.array([-1, 0, 1])))
        return g.one(Cast("f32"), y), g.one(MatMul(), w, w)

    before = make({"x": "f16[2]", "w": "f16[2,2]"}, body)
    check(before)
    (y, _) = interpret(widen(before), feed(before)).values()
    assert y[0] == np.float16(0.1)


def test_outputs_are_cast_where_they_are_made():
    """So that none waits in memory for the end; the values between keep the model's names."""

    def body(g, x):
        first = g.one(MatMul(), x, x)
        second = g.one(Unary("relu"), first)
        return first, g.one(MatMul(), second, second)

    before = make({"x": "f16[4,4]"}, body)
    after = check(before)
    assert op_names(after) == ["Cast", "MatMul", "Rounded", "Cast", "Unary", "MatMul", "Rounded", "Cast"]
    inner = before.nodes[1].outputs[0]
    assert after.types[inner].dtype is F32 and after.makers[inner].op == Unary("relu")
