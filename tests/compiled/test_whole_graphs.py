"""Small graphs that passes could tear apart, compiled for this machine, against their definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import interpret
from burnish.errors import RunError
from burnish.frontends.onnx.importer import import_onnx
from onnx import TensorProto, helper, numpy_helper

from ..passes.make import scale_of

RNG = np.random.default_rng(3)
X = (1, 32, 12, 11)
Build = Callable[[Callable[..., str]], str]


def model(build: Build, inputs: dict[str, tuple[int, ...]], rename: dict[str, str]) -> onnx.ModelProto:
    """`build` makes nodes: make(operator, *inputs, shape of weights or None, **attributes) → the result."""
    nodes: list[onnx.NodeProto] = []
    weights = []

    def make(op: str, *operands: str, weight: tuple[int, ...] | None = None, **attributes: object) -> str:
        given = [rename.get(name, name) for name in operands]
        if weight:
            array = (RNG.standard_normal(weight) / np.sqrt(np.prod(weight[1:]))).astype(np.float32)
            name = f"w{len(weights)}"
            weights.append(numpy_helper.from_array(array, rename.get(name, name)))
            given.append(rename.get(name, name))
        result = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, given, [rename.get(result, result)], **attributes))
        return result

    y = build(make)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    read = {name for node in nodes for name in node.input}
    weights += [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in read]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=rename.get(y, y))], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def conv(make: Callable[..., str], x: str, out: int, channels: int) -> str:
    return make("Conv", x, weight=(out, channels, 3, 3), pads=[1] * 4)


def difference_of_squares(make):
    a, b = conv(make, "x", 32, 32), conv(make, "x", 32, 32)
    return make("Mul", make("Sub", a, b), make("Add", a, b))


def nested(make):
    a, b = conv(make, "x", 32, 32), conv(make, "x", 32, 32)
    return make("Sub", a, make("Mul", make("Add", a, b), b))


def greater(make):
    a, b = conv(make, "x", 32, 32), conv(make, "x", 32, 32)
    return make("Where", make("Greater", a, b), a, b)


def squared(make):
    t = make("Tanh", conv(make, "x", 32, 32))
    return make("Mul", t, t)


def masked(make):
    return make("Mul", conv(make, "image", 32, 3), "mask")


def logarithms(make):
    """Of 24 channels: vectors of 16 are not full."""
    inner = make("Log", make("Exp", make("Tanh", conv(make, "x", 24, 32))))
    return conv(make, make("Div", inner, make("Exp", inner)), 64, 24)


def positive(make):
    """What a kernel of its own reads, which knows no layouts."""
    return make("CumSum", make("Cast", make("Greater", conv(make, "wide", 64, 64), "zero"), to=7), "axis")


def add_pooled(make):
    """A sum over all of an image, and a result of one pixel in blocks of channels."""
    pixel = make("Conv", "pixel", weight=(64, 16, 1, 1), group=4)
    return make("Add", make("Conv", "square", weight=(64, 4, 7, 7), group=16), pixel)


def residual_in_blocks(make):
    """Of the result's rows, which a convolution wrote as channels."""
    t = make("Transpose", make("Conv", "signal", weight=(64, 64, 3), pads=[1, 1]), perm=[0, 2, 1])
    return make("Add", make("MatMul", t, "square_of_64"), "rows")


def gate(make):
    """Of one pixel in blocks, on channels that cannot be."""
    g = make("Sigmoid", make("Conv", "dot", weight=(32, 3, 1, 1)))
    return make("Mul", make("Conv", "picture", "filters", pads=[1] * 4), g)


GRAPHS = {
    residual_in_blocks: "signal rows",
    gate: "picture filters dot",
    difference_of_squares: "x",
    nested: "x",
    greater: "x",
    squared: "x",
    masked: "image mask",
    logarithms: "x",
    positive: "wide",
    add_pooled: "pixel square",
}
INPUTS = {
    "x": X,
    "image": (1, 3, 12, 11),
    "mask": (1, 12, 11),
    "wide": (1, 64, 32, 32),
    "pixel": (1, 64, 1, 1),
    "square": (1, 64, 7, 7),
    "signal": (1, 64, 512),
    "rows": (1, 512, 64),
    "dot": (1, 3, 1, 1),
    "picture": (1, 3, 32, 32),
    "filters": (32, 3, 3, 3),
}
CONSTANTS = {
    "square_of_64": RNG.standard_normal((64, 64)).astype(np.float32),
    "zero": np.array(0, np.float32),
    "axis": np.array(3),
}
NAMES = {"v1": "v0@aBcd16b", "v2": "v0@plain", "w1": "w0@winograd4"}


def check(m: onnx.ModelProto, **options: object) -> None:
    feeds = {
        i.name: RNG.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in m.graph.input
    }
    graph = import_onnx(m)
    expected = interpret(graph, feeds)
    found = pipeline.compile(m, threads=2, cache=False, **options).run(feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=3e-5 * scale_of(expected[name]))


@pytest.mark.parametrize("plan", ["global", "fixed"])
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_graphs(build: Build, plan: str) -> None:
    check(model(build, {n: INPUTS[n] for n in GRAPHS[build].split()}, {}), plan=plan)


@pytest.mark.parametrize(
    "names", [NAMES, {f"v{n}": f"{n}#0" for n in range(9)}], ids=["layouts", "temporaries"]
)
@pytest.mark.parametrize("build", [difference_of_squares, logarithms], ids=lambda build: build.__name__)
def test_names_as_the_compiler_might_give_them(build: Build, names: dict[str, str]) -> None:
    check(model(build, {"x": X}, names))


@pytest.mark.parametrize(("shape", "bad"), [((1, 8), 5), ((1, 8), -2), ((0, 8), 0), ((2, 8), 2)])
def test_indices_into_one_element_or_none_are_checked(shape: tuple[int, int], bad: int) -> None:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("i", TensorProto.INT64, (1,)),
    ]
    node = helper.make_node("Gather", ["x", "i"], ["y"], "pick")
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, (1, 8))])
    module = pipeline.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), cache=False
    )
    x = np.ones(shape, np.float32)
    with pytest.raises(RunError, match="node pick: an index is out of range"):
        module.run({"x": x, "i": np.array([bad])})
    if len(x):
        np.testing.assert_array_equal(module.run({"x": x, "i": np.array([-1])})["y"], x[-1:])


def test_integers_wrap_before_they_are_compared_and_divided() -> None:
    nodes = [
        helper.make_node("Add", ["x", "one"], ["more"]),
        helper.make_node("Greater", ["more", "x"], ["greater"]),
        helper.make_node("Max", ["more", "x"], ["most"]),
        helper.make_node("Mul", ["x", "six"], ["product"]),
        helper.make_node("Mod", ["product", "three"], ["rest"]),
    ]
    infos = [helper.make_tensor_value_info("x", TensorProto.INT64, (4,))]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("greater", "most", "rest")]
    held = [numpy_helper.from_array(np.array(v), n) for n, v in (("one", 1), ("six", 6), ("three", 3))]
    graph = helper.make_graph(nodes, "g", infos, outputs, held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.array([np.iinfo(np.int64).max, 2**62, -5, 7])
    with np.errstate(over="ignore"):
        expected = x + 1 > x, np.maximum(x + 1, x), (x * 6) % 3
    found = pipeline.compile(m, cache=False).run({"x": x})
    for have, want in zip(found.values(), expected):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("op", ["Add", "Expand", "Tile", "Concat", "Atan"])
def test_indices_behind_what_repeats_a_row_are_checked(op: str) -> None:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8)),
        helper.make_tensor_value_info("i", TensorProto.INT64, (2,)),
    ]
    how = {"Add": ["x", "x"], "Expand": ["x", "sizes"], "Tile": ["x", "sizes"]}
    sizes = np.array([4, 8] if op == "Expand" else [3, 1])
    kept = [numpy_helper.from_array(sizes, "sizes")]
    options = {"axis": 0} if op == "Concat" else {}
    nodes = [
        helper.make_node(op, how.get(op, ["x"]), ["s"], **options),
        helper.make_node("Gather", ["s", "i"], ["y"], "pick"),
    ]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], kept)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    module = pipeline.compile(m, cache=False)
    x = np.ones((1, 8), np.float32)
    row = {"Add": 2.0, "Atan": np.pi / 4}.get(op, 1.0)
    np.testing.assert_allclose(
        module.run({"x": x, "i": np.array([0, -1])})["y"], np.full((2, 8), row), rtol=1e-6
    )
    with pytest.raises(RunError, match=r"node .*pick.*: an index is out of range"):
        module.run({"x": x, "i": np.array([0, 7])})


@pytest.mark.parametrize("reader", ["Where", "Slice", "Gather"])
def test_indices_are_checked_whatever_is_read_of_what_they_pick(reader: str) -> None:
    inputs = {"x": ((10, 8), 1), "i": ((4,), 7), "c": ((4, 8), 9), "y": ((4, 8), 1)}
    infos = [helper.make_tensor_value_info(n, code, shape) for n, (shape, code) in inputs.items()]
    held = [
        numpy_helper.from_array(np.array(v), n) for n, v in (("from", [0]), ("to", [2]), ("some", [0, 1]))
    ]
    read = {"Where": ["c", "picked", "y"], "Slice": ["picked", "from", "to"], "Gather": ["picked", "some"]}
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["picked"], "pick"),
        helper.make_node(reader, read[reader], ["z"], "read"),
    ]
    outputs = [onnx.ValueInfoProto(name="z")]
    used = [info for info in infos if info.name in "xi" or info.name in read[reader]]
    graph = helper.make_graph(nodes, "g", used, outputs, [h for h in held if h.name in read[reader]])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    module = pipeline.compile(m, cache=False)
    x, cond = np.arange(80, dtype=np.float32).reshape(10, 8), np.ones((4, 8), bool)
    cond[3] = False
    feeds = {"x": x, "i": np.array([1, 2, 3, -1]), "c": cond, "y": np.zeros((4, 8), np.float32)}
    feeds = {info.name: feeds[info.name] for info in used}
    picked = x[[1, 2, 3, -1]]
    expected = {"Where": np.where(cond, picked, 0), "Slice": picked[:2], "Gather": picked[:2]}[reader]
    np.testing.assert_array_equal(module.run(feeds)["z"], expected)
    with pytest.raises(RunError, match=r"node .*pick.*: an index is out of range"):
        module.run({**feeds, "i": np.array([1, 2, 3, 99])})


def test_constants_that_round_a_convolution_stay() -> None:
    """Behind quantisation by adding and subtracting a large number."""
    w = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32(12582912), "large")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "large"], ["b"]),
        helper.make_node("Sub", ["b", "large"], ["y"]),
    ]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8, 8))
    graph = helper.make_graph(nodes, "g", [info], [onnx.ValueInfoProto(name="y")], held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)
    y = pipeline.compile(m, cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(y, np.rint(y))
    assert np.abs(y - np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0])).max() < 0.51


def test_what_wraps_is_not_bounded() -> None:
    nodes = [
        helper.make_node("Add", ["x", "one"], ["more"]),
        helper.make_node("Greater", ["more", "x"], ["greater"]),
        helper.make_node("Max", ["x", "zero"], ["positive"]),
        helper.make_node("Add", ["positive", "one"], ["wrapped"]),
        helper.make_node("Max", ["wrapped", "zero"], ["most"]),
        helper.make_node("Max", ["x", "zero"], ["again"]),
        helper.make_node("Add", ["again", "one"], ["other"]),
        helper.make_node("Less", ["other", "zero"], ["less"]),
    ]
    infos = [helper.make_tensor_value_info("x", TensorProto.INT64, (4,))]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("greater", "most", "less")]
    held = [numpy_helper.from_array(np.array(v), n) for n, v in (("one", 1), ("zero", 0))]
    graph = helper.make_graph(nodes, "g", infos, outputs, held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.array([np.iinfo(np.int64).max, 2**62, -5, 7])
    with np.errstate(over="ignore"):
        more = np.maximum(x, 0) + 1
        expected = x + 1 > x, np.maximum(more, 0), more < 0
    found = pipeline.compile(m, cache=False).run({"x": x})
    for have, want in zip(found.values(), expected):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("far", [np.inf, 1e20, -np.inf])
def test_regions_that_are_none_end(far: float) -> None:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 6, 6)),
        helper.make_tensor_value_info("rois", TensorProto.FLOAT, (1, 4)),
    ]
    node = helper.make_node(
        "RoiAlign", ["x", "rois", "zero"], ["y"], "align", output_height=2, output_width=2
    )
    held = [numpy_helper.from_array(np.array([0]), "zero")]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")], held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    module = pipeline.compile(m, cache=False)
    feeds = {"x": np.ones((1, 2, 6, 6), np.float32), "rois": np.array([[0, 0, 4, 4]], np.float32)}
    np.testing.assert_allclose(module.run(feeds)["y"], 1)
    feeds["rois"][0, 2] = far
    if far > 0:
        with pytest.raises(RunError, match="node align"):
            module.run(feeds)
    else:
        np.testing.assert_array_equal(module.run(feeds)["y"], 0)  # it has no elements


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("InstanceNormalization", [(2, 0, 4, 4), (0,), (0,)], {}),
        ("Conv", [(1, 3, 8, 0), (4, 3, 1, 1)], {}),
        ("Conv", [(1, 3, 8, 8), (0, 3, 3, 3)], {}),
    ],
)
def test_nothing_in_nothing_out(op: str, shapes: list[tuple[int, ...]], attributes: dict) -> None:
    held = [numpy_helper.from_array(np.zeros(s, np.float32), f"w{n}") for n, s in enumerate(shapes[1:])]
    node = helper.make_node(op, ["x", *(w.name for w in held)], ["y"], **attributes)
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes[0])]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")], held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert pipeline.compile(m, cache=False).run({"x": np.zeros(shapes[0], np.float32)})["y"].size == 0


def test_chains_of_functions_as_long_as_kernels_may_be() -> None:
    nodes = [helper.make_node("Exp" if n % 2 else "Neg", [f"v{n}"], [f"v{n + 1}"]) for n in range(48)]
    nodes += [helper.make_node("Erf", [f"v{n}"], [f"v{n + 1}"]) for n in range(48, 72)]
    infos = [helper.make_tensor_value_info("v0", TensorProto.FLOAT, (5,))]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="v72")])
    check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
