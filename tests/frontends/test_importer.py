from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import burnish.frontends.onnx
import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.errors import (
    BurnishError,
    InputError,
    ModelError,
    ModelWarning,
    NeedsValueError,
    UnsupportedError,
)
from burnish.frontends.onnx.importer import import_onnx
from burnish.frontends.onnx.whole import read_whole
from burnish.graph_passes.fold import fold
from burnish.graph_passes.simplify import share, simplify
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from .build import I64, X, Y, graph, model, node, untyped, value, weight

ARRAY = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def ops(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes]


def run(source, feed=None, **options) -> tuple[Graph, dict[str, np.ndarray]]:
    g = import_onnx(source, **options)
    verify(g)
    return g, interpret(g, {"x": ARRAY} if feed is None else feed)


def assert_as_onnx(source: onnx.ModelProto, feed: dict[str, np.ndarray], **options) -> Graph:
    g, actual = run(source, feed, **options)
    expected = ReferenceEvaluator(source).run(None, feed)
    assert g.outputs == tuple(o.name for o in source.graph.output)
    for name, array in zip(g.outputs, expected):
        np.testing.assert_allclose(actual[name], array, rtol=1e-6)
    return g


def test_path_bytes_and_proto_give_the_same_graph(tmp_path):
    m = model([node("Add", ["x", "w"], ["y"], name="plus")], [X], [Y], [weight("w", [1, 2, 3])])
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    graphs = [run(source)[0] for source in (m, m.SerializeToString(), path, str(path))]
    assert {str(g.nodes) for g in graphs} == {str(graphs[0].nodes)}
    assert graphs[0].nodes[0].name == "plus" and graphs[0].inputs == ("x",)


@pytest.mark.parametrize("kind", ["text", "sparse"])
def test_initializers_of_unsupported_types_are_refused_where_they_are_read(kind):
    m = model([node("Relu", ["x"], ["y"])], [X], [Y])
    if kind == "text":
        m.graph.initializer.append(helper.make_tensor("names", TensorProto.STRING, [2], ["cat", "dog"]))
    else:
        sparse = helper.make_sparse_tensor(weight("names", [1.0]), weight("places", [2], np.int64), [9])
        m.graph.sparse_initializer.append(sparse)
    run(m)
    for read in (node("Identity", ["names"], ["z"]), node("Size", ["names"], ["z"])):
        del m.graph.node[1:]
        m.graph.node.append(read)
        with pytest.raises(UnsupportedError, match="initializer 'names'"):
            import_onnx(m)


def test_defaults_are_float32_as_what_is_stated():
    wide = np.array([-1.0, 2.0])
    inputs, outputs = [value("x", (2,), TensorProto.DOUBLE)], [value("y", (2,), TensorProto.DOUBLE)]
    m = model([node("LeakyRelu", ["x"], ["y"])], inputs, outputs)
    assert run(m, {"x": wide})[1]["y"][0] == -np.float64(np.float32(0.01))


def test_statistics_over_no_axes_are_over_all():
    over = node("MeanVarianceNormalization", ["x"], ["y"], axes=[0])
    del over.attribute[0].ints[:]
    m = model([over], [X], [Y])
    assert_as_onnx(m, {"x": ARRAY})


def test_an_ellipsis_that_the_result_leaves_out_is_refused():
    m = model([node("Einsum", ["x", "x"], ["y"], equation="...i,...i->i")], [X], [untyped("y")])
    with pytest.raises(ModelError, match="has an ellipsis in its operands, but none in its result"):
        import_onnx(m)


def test_the_model_is_not_changed():
    m = model([node("Add", ["x", "w"], ["y"])], [X], [untyped("y")], [weight("w", np.ones((200, 2, 3)))])
    before = m.SerializeToString()
    import_onnx(m)
    assert m.SerializeToString() == before


def test_a_node_without_a_name_is_called_after_its_output():
    g, _ = run(model([node("Relu", ["x"], ["y"])], [X], [Y]))
    assert g.nodes[0].name == "Relu:y"


def test_values_keep_their_names():
    nodes = [node("Mean", ["x", "x"], ["m"]), node("Relu", ["m"], ["r"]), node("Neg", ["r"], ["y"])]
    g, _ = run(model(nodes, [X], [Y]))
    assert {"x", "m", "r", "y"} <= set(g.types)


def test_initializers_may_also_be_inputs():
    m = model([node("Add", ["x", "w"], ["y"])], [X, value("w", (3,))], [Y], [weight("w", [1, 2, 3])], ir=3)
    g = assert_as_onnx(m, {"x": ARRAY})
    assert g.inputs == ("x",)


@pytest.mark.parametrize("opset", [7, 13, onnx.defs.onnx_opset_version()])
def test_opsets_from_7_to_the_newest(opset):
    m = model([node("Relu", ["x"], ["y"])], [X], [Y], opset=opset)
    assert_as_onnx(m, {"x": ARRAY})


def test_outputs_that_are_inputs_constants_or_shared_are_copied():
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Relu", ["x"], ["b"]),
        node("Identity", ["b"], ["c"]),
        node("Shape", ["x"], ["s"]),
    ]
    outputs = [untyped(n) for n in ("s", "c", "b", "a", "w")]
    m = model(nodes, [X], outputs, [weight("w", [1, 2])])
    g = assert_as_onnx(m, {"x": ARRAY})
    made = {o for n in g.nodes for o in n.outputs}
    assert set(g.outputs) <= made


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (node("LayerNormalization", ["x", "x"], ["y"], name="n", axis=-1.0), "'axis' is of type FLOAT"),
        (node("LayerNormalization", ["x", "x"], ["y"], name="n", epsilon="a"), "of type STRING, not FLOAT"),
        (node("SequenceMap", ["x"], ["y"], name="map", body=graph([node("Neg", ["a"], ["b"])],
              [value("a", (3,))], [value("b", (3,))])), "sequence"),
    ],
)  # fmt: skip
def test_what_nobody_else_checks(wrong, says):
    with pytest.raises(BurnishError, match=says) as caught:
        run(model([wrong], [X], [untyped("y")]))
    assert wrong.name in str(caught.value)


def test_attributes_of_a_function_have_the_types_of_those_that_refer_to_them():
    inner = node("Softmax", ["a"], ["b"])
    inner.attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="at")
    function = helper.make_function("own", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 20)], ["at"])
    call = node("F", ["x"], ["y"], name="call", domain="own", at=1.0)
    with pytest.raises(ModelError, match="attribute 'axis' is of type INT, but its function is given FLOAT"):
        run(model([call], [X], [Y], functions=[function], domains=["own"]))


def test_products_of_three_constants_are_taken_in_pairs():
    names = ["a", "b", "c"]
    nodes = [node("Einsum", names, ["s"], equation="a,b,c->"), node("Mul", ["x", "s"], ["y"])]
    _, out = run(model(nodes, [X], [Y], [weight(n, np.full(20_000, 1e-4)) for n in names]))
    np.testing.assert_allclose(out["y"], ARRAY * 8, rtol=1e-4)


def test_constants_of_branches_may_be_inputs_in_old_files():
    """Up to version 3 of the format they had to be."""
    branch = graph(
        [node("Add", ["x", "one"], ["t"])], [value("one", (1,))], [value("t", (2, 3))], [weight("one", [1])]
    )
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    given = [weight("c", True, bool)]
    m = model(nodes, [X, value("c", (), TensorProto.BOOL)], [Y], given, opset=8, ir=3)
    _, out = run(m)
    np.testing.assert_array_equal(out["y"], ARRAY + 1)


def test_types_that_are_not_said_are_computed():
    m = model([node("Relu", ["x"], ["t"]), node("Neg", ["t"], ["y"])], [X], [value("y", (2, 3), 0)])
    m.graph.value_info.append(value("t", (2, 3), 0))
    _, out = run(m)
    np.testing.assert_array_equal(out["y"], -np.maximum(ARRAY, 0))


def test_values_that_are_two_outputs_of_a_branch():
    branch = graph([node("Relu", ["x"], ["t"])], [], [untyped("t"), untyped("t")])
    nodes = [node("If", ["c"], ["a", "b"], then_branch=branch, else_branch=branch)]
    m = model(nodes, [X], [untyped("a"), untyped("b")], [weight("c", True, bool)])
    assert_as_onnx(m, {"x": ARRAY})


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, -1.5), (2.0, 3.0), (0.25, 0.0)])
def test_integers_times_halves(alpha, beta):
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], alpha=alpha, beta=beta)]
    held = [weight("w", [[1, -2], [3, 4], [-5, 6]], np.int64), weight("b", [7, -9], np.int64)]
    m = model(nodes, [value("x", [2, 3], I64)], [value("y", [2, 2], I64)], held)
    assert_as_onnx(m, {"x": ARRAY.astype(np.int64)})


def test_shape_computations_become_constants():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [weight("zero", 0, np.int64), weight("axes", [0], np.int64), weight("minus", [-1, 1], np.int64)]
    g = assert_as_onnx(
        model(nodes, [value("x", ("N", 3))], [untyped("y")], weights), {"x": ARRAY}, dims={"N": 2}
    )
    assert ops(g) == ["Reshape"] and not g.constants


def test_large_constants_are_left_to_the_fold_pass():
    nodes = [node("Exp", ["w"], ["e"]), node("Add", ["x", "e"], ["y"])]
    m = model(nodes, [X], [untyped("y")], [weight("w", np.ones((300_000, 1, 3)))])
    assert ops(import_onnx(m)) == ["Unary", "Binary"]


def test_what_decides_shapes_may_be_computed_from_large_constants():
    nodes = [
        node("ReduceMax", ["w"], ["most"], axes=[0], keepdims=0),
        node("Cast", ["most"], ["times"], to=I64),
        node("Tile", ["x", "times"], ["y"]),
    ]
    w = weight("w", np.tile(np.float32([2, 1]), (300_000, 1)))
    _, out = run(model(nodes, [X], [untyped("y")], [w], opset=13))
    np.testing.assert_array_equal(out["y"], np.tile(ARRAY, (2, 1)))


def test_sizes_are_scaled_as_exporters_count():
    """0.7 in f32 is a little less."""
    m = model([node("Resize", ["x", "", "s"], ["y"])], [value("x", (10, 5))], [value("y", (7, 7))])
    m.graph.initializer.append(weight("s", [0.7, 1.4]))
    assert import_onnx(m).types["y"].dims == (7, 7)


@pytest.mark.parametrize("span", [(0.1, 1.1, 0.1), (0, 1, 0.1), (1, -1.25, -0.75)])
def test_ranges_of_f32_are_counted_in_f64(span):
    """As onnxruntime does: 1.1 - 0.1 of f32 is more than 1."""
    names = ["first", "end", "step"]
    m = model([node("Range", names, ["y"])], [], [untyped("y")], [weight(n, v) for n, v in zip(names, span)])
    first, end, step = (float(np.float32(v)) for v in span)
    (y,) = run(m, {})[1].values()
    np.testing.assert_allclose(y, first + step * np.arange(np.ceil((end - first) / step)), rtol=1e-6)


def test_constants_in_blocks_that_are_longer_than_they_are():
    given = [weight("w", np.arange(32).reshape(4, 8), np.int8), weight("s", np.full((4, 1), 0.5))]
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=1 << 40),
        node("Add", ["x", "d"], ["y"]),
    ]
    x = np.ones((4, 8), np.float32)
    _, out = run(model(nodes, [value("x", x.shape)], [untyped("y")], given, opset=21), {"x": x})
    np.testing.assert_array_equal(out["y"], 1 + 0.5 * np.arange(32).reshape(4, 8))


@pytest.mark.parametrize(
    ("inner", "shape", "given"),
    [
        (node("AffineGrid", ["x", "n"], ["y"]), (1, 2, 3), [weight("n", [1, 2, 1 << 16, 1 << 15], np.int64)]),
        (
            node("STFT", ["x", "one", "", "n"], ["y"]),
            (1, 1 << 20),
            [weight("n", 1 << 13, np.int64), weight("one", 1, np.int64)],
        ),
        (
            node("Resize", ["x", "", "", "n"], ["y"], mode="linear", antialias=1),
            (1, 1, 1, 1 << 29),
            [weight("n", [1, 1, 1, 1], np.int64)],
        ),
    ],
)
def test_what_small_models_make_large_is_refused(inner, shape, given):
    with pytest.raises(ModelError, match=r"claims .* the limit is"):
        run(model([inner], [value("x", shape)], [untyped("y")], given, opset=20))


def test_operands_that_a_function_is_not_given_are_none_of_what_it_calls():
    inner = node("SoftmaxCrossEntropyLoss", ["a", "t", "w"], ["b"])
    function = helper.make_function(
        "own", "Loss", ["a", "t", "w"], ["b"], [inner], [helper.make_opsetid("", 20)]
    )
    call = node("Loss", ["x", "t"], ["y"], domain="own")
    given = [weight("t", [1, 2], np.int64)]
    m = model([call], [X], [untyped("y")], given, functions=[function], domains=["own"])
    _, out = run(m)
    rows = ARRAY - np.log(np.exp(ARRAY).sum(1, keepdims=True))
    np.testing.assert_allclose(out["y"], -(rows[0, 1] + rows[1, 2]) / 2, rtol=1e-5)


def test_what_was_pooled_goes_back_where_it_came_from():
    """Also where the size of what was pooled is said, since it was odd."""
    x = np.random.default_rng(0).permutation(40).reshape(1, 1, 8, 5).astype(np.float32)
    nodes = [
        node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["p", "i", "s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    m = model(nodes, [value("x", x.shape)], [untyped("y")], [weight("s", x.shape, np.int64)])
    _, out = run(m, {"x": x})
    largest = x[:, :, :, :4].reshape(1, 1, 4, 2, 2, 2).max((3, 5), keepdims=True)
    largest = np.broadcast_to(largest, (1, 1, 4, 2, 2, 2)).reshape(1, 1, 8, 4)
    np.testing.assert_array_equal(out["y"][..., :4], np.where(x[..., :4] == largest, x[..., :4], 0))
    assert not out["y"][..., 4].any()


def test_an_operator_that_was_deprecated_for_how_it_was_specified():
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    m = model(
        [node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)],
        [value("x", x.shape)],
        [value("y", x.shape)],
        [weight("scale", [2, 3]), weight("bias", [1, -1])],
        opset=18,
    )
    _, out = run(m, {"x": x})
    groups = x.reshape(2, 2, 6)
    even = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    expected = even * np.float32([[2], [3]]) + np.float32([[1], [-1]])
    np.testing.assert_allclose(out["y"], expected.reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: node("MaxPool", ["w"], ["y"], kernel_shape=[175, 175]),
        lambda: node("Conv", ["w", "v"], ["y"]),
    ],
)
def test_windows_that_take_gigabytes_are_left_to_the_run(make):
    weights = [weight("w", np.ones((1, 1, 350, 350))), weight("v", np.ones((1, 1, 100, 100)))]
    tracemalloc.start()
    g = fold(import_onnx(model([make()], [], [untyped("y")], weights)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 28 and set(ops(g)) & {"MaxPool", "Conv"}


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: node("DepthToSpace", ["a"], ["y"], blocksize=1, mode="crd"), [(1, 4, 2, 2)]),
        (lambda: node("TensorScatter", ["a", "b"], ["y"], mode="ring"), [(1, 4, 2), (1, 1, 2)]),
        (lambda: node("ConvTranspose", ["a", "b"], ["y"], auto_pad="SAME"), [(1, 1, 4), (1, 1, 3)]),
        (lambda: node("Resize", ["a", "", "s"], ["y"], nearest_mode="simple"), [(2, 3)]),
    ],
)
def test_words_that_an_attribute_does_not_have(make, shapes):
    inputs = [value(name, shape) for name, shape in zip("ab", shapes)]
    m = model([make()], inputs, [untyped("y")], [weight("s", [2, 2])], opset=24)
    with pytest.raises(UnsupportedError, match=rf"\({m.graph.node[0].op_type}\): .*; expected one of"):
        import_onnx(m)


class TestSizes:
    M = model(
        [node("Add", ["x", "z"], ["y"])],
        [value("x", ("N", "C")), value("z", ("N", None))],
        [value("y", ("N", "C"))],
    )

    def test_by_name_and_by_shape(self):
        g = import_onnx(self.M, dims={"N": 2}, shapes={"x": (2, 3), "z": (2, 1)})
        assert [g.types[n].dims for n in ("x", "z", "y")] == [(2, 3), (2, 1), (2, 3)]

    def test_a_shape_binds_the_names_in_it(self):
        other = model(
            [node("Neg", ["x"], ["t"]), node("Abs", ["z"], ["y"])],
            [value("x", ("N", 3)), value("z", ("N",))],
            [value("y", ("N",))],
        )
        assert import_onnx(other, shapes={"x": (7, 3)}).types["z"].dims == (7,)

    def test_names_of_sizes_need_not_mean_one_size(self):
        """Transformers with a past name its length like the sum of both."""
        nodes = [node("Concat", ["x", "p"], ["t"], axis=0), node("Add", ["t", "m"], ["y"])]
        inputs = [value("x", ("N", 3)), value("p", ("P", 3)), value("m", ("P", 1))]
        m = model(nodes, inputs, [value("y", ("P", 3))], infos=[value("t", (0, 3))])
        g = import_onnx(m, shapes={"x": (1, 3), "p": (4, 3), "m": (5, 1)})
        assert g.types["y"].dims == (5, 3)
        with pytest.raises(UnsupportedError, match="the size 'P' that is not known"):
            also = [*nodes, node("Neg", ["q"], ["r"])], [*inputs, value("q", ("P",))], [untyped("r")]
            import_onnx(model(*also), shapes={"x": (1, 3), "p": (4, 3), "m": (5, 1)})
        with pytest.raises(InputError, match=r"where P=4; the shape .5, 1. does not fit"):
            import_onnx(m, dims={"P": 4}, shapes={"x": (1, 3), "m": (5, 1)})

    @pytest.mark.parametrize("declared", [("N",), (5, 4)])
    def test_a_declared_shape_that_is_wrong_is_only_warned_of(self, declared):
        """Exporters leave outputs as they were before somebody changed the network."""
        nodes = [node("Relu", ["x"], ["t"], name="act"), node("Neg", ["t"], ["y"], name="last")]
        bad = model(nodes, [value("x", ("N", 3))], [value("y", declared)], infos=[value("t", declared)])
        with pytest.warns(ModelWarning) as warned:
            g = import_onnx(bad, dims={"N": 5})
        assert g.types["y"].dims == g.types["t"].dims == (5, 3)
        assert [str(w.message).partition(" is declared")[0] for w in warned] == [
            "node 'act' (Relu): value 't'",
            "node 'last' (Neg): graph output 'y'",
        ]


class TestValues:
    M = model([node("Reshape", ["x", "s"], ["y"], name="r")], [X, value("s", (2,), I64)], [untyped("y")])

    def test_become_constants_and_are_no_inputs(self):
        g, out = run(self.M, values={"s": np.array([3, -1])})
        assert g.inputs == ("x",)
        np.testing.assert_array_equal(out["y"], ARRAY.reshape(3, 2))

    def test_are_asked_for_by_name(self):
        with pytest.raises(NeedsValueError) as caught:
            import_onnx(self.M)
        assert caught.value.inputs == ("s",)

    def test_an_initializer_may_be_overridden(self):
        m = model([node("Add", ["x", "w"], ["y"])], [X, value("w", (3,))], [Y], [weight("w", [1, 2, 3])])
        _, out = run(m, values={"w": np.float32([7, 8, 9])})
        np.testing.assert_array_equal(out["y"], ARRAY + np.float32([7, 8, 9]))

    def test_normalisations_that_optimisers_add_stand_in_functions_too(self):
        body = [node("LayerNormalization", ["a", "b"], ["c"], name="inner", axis=-1)]
        f = helper.make_function("own", "F", ["a", "b"], ["c"], body, [helper.make_opsetid("", 13)])
        call = node("F", ["x", "w"], ["y"], domain="own")
        m = model([call], [X], [Y], [weight("w", [1, 2, 3])], functions=[f], domains=["own"], opset=13)
        _, out = run(m)
        centred = ARRAY - ARRAY.mean(-1, keepdims=True)
        normal = centred / np.sqrt(ARRAY.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(out["y"], normal * [1, 2, 3], rtol=1e-5)

    def test_the_error_of_a_function_body_names_the_call_and_keeps_the_inputs(self):
        body = [node("Reshape", ["a", "b"], ["c"], name="inner")]
        f = helper.make_function("own", "F", ["a", "b"], ["c"], body, [helper.make_opsetid("", 20)])
        call = node("F", ["x", "s"], ["y"], name="call", domain="own")
        m = model([call], [X, value("s", (2,), I64)], [untyped("y")], functions=[f], domains=["own"])
        with pytest.raises(NeedsValueError, match="'call'") as caught:
            import_onnx(m)
        assert caught.value.inputs == ("s",)


class TestFunctions:
    IMPORTS = (helper.make_opsetid("", 20), helper.make_opsetid("own", 1))

    def scale(self) -> onnx.FunctionProto:
        """F(a, b = nothing) {alpha = 2} = a * alpha"""
        body = [node("Constant", [], ["f"]), node("Mul", ["a", "f"], ["c"])]
        body[0].attribute.append(onnx.AttributeProto(name="value_float", type=1, ref_attr_name="alpha"))
        default = helper.make_attribute("alpha", 2.0)
        return helper.make_function("own", "F", ["a", "b"], ["c"], body, self.IMPORTS, [], [default])

    def test_of_the_model_with_attributes_and_defaults(self):
        nodes = [
            node("F", ["x"], ["t"], domain="own", name="f1"),
            node("F", ["t", ""], ["y"], domain="own", name="f2", alpha=5.0),
        ]
        g, out = run(model(nodes, [X], [Y], functions=[self.scale()], domains=["own"]))
        np.testing.assert_array_equal(out["y"], ARRAY * 10)
        assert ops(g) == ["Binary", "Binary"] and {"x", "t", "y"} <= set(g.types)

    def test_nested_with_the_same_inner_names(self):
        body = [node("F", ["a"], ["t"], domain="own"), node("F", ["t"], ["c"], domain="own")]
        outer = helper.make_function("own", "G", ["a"], ["c"], body, self.IMPORTS)
        nodes = [node("G", ["x"], ["t"], domain="own"), node("G", ["t"], ["y"], domain="own")]
        _, out = run(model(nodes, [X], [Y], functions=[self.scale(), outer], domains=["own"]))
        np.testing.assert_array_equal(out["y"], ARRAY * 16)

    def test_that_return_an_argument(self):
        f = helper.make_function("own", "F", ["a"], ["a"], [], self.IMPORTS)
        nodes = [node("F", ["x"], ["t"], domain="own"), node("Neg", ["t"], ["y"])]
        _, out = run(model(nodes, [X], [Y], functions=[f], domains=["own"]))
        np.testing.assert_array_equal(out["y"], -ARRAY)


class TestControlFlow:
    def branch(self, op: str) -> onnx.GraphProto:
        nodes = [node("Add", ["x", "one"], ["q"]), node(op, ["q"], ["r"])]
        return graph(nodes, [], [value("r", (2, 3))], [weight("one", 1)])

    @pytest.mark.parametrize("condition", [True, False])
    def test_the_branch_of_a_known_condition_is_inlined(self, condition):
        choice = node("If", ["c"], ["y"], then_branch=self.branch("Exp"), else_branch=self.branch("Neg"))
        m = model([choice], [X], [Y], [weight("c", condition, np.bool_)])
        assert len(assert_as_onnx(m, {"x": ARRAY}).nodes) == 2

    def test_two_branches_may_use_the_same_names(self):
        choices = [
            node("If", ["c"], ["t"], then_branch=self.branch("Exp"), else_branch=self.branch("Neg")),
            node("If", ["c"], ["y"], then_branch=self.branch("Neg"), else_branch=self.branch("Exp")),
            node("Sub", ["t", "y"], ["z"]),
        ]
        m = model(choices, [X], [Y, value("z", (2, 3))], [weight("c", False, np.bool_)])
        assert_as_onnx(m, {"x": ARRAY})

    def loop(self, condition: str) -> onnx.ModelProto:
        """v doubles while v's step is below 3; the sums are collected."""
        body = graph(
            [
                node("Less", ["i", "three"], ["go"]),
                node("Add", ["v", "v"], ["w"]),
                node("ReduceSum", ["w"], ["s"]),
            ],
            [value("i", (), I64), value("cond", (), TensorProto.BOOL), value("v", (2, 3))],
            [value("go", (), TensorProto.BOOL), value("w", (2, 3)), value("s", (1, 1))],
        )
        loop = node("Loop", ["count", condition, "x"], ["y", "sums"], body=body)
        weights = [
            weight("count", 10, np.int64),
            weight("three", 3, np.int64),
            weight("true", True, np.bool_),
        ]
        return model([loop], [X], [Y, untyped("sums")], weights)

    @pytest.mark.parametrize("condition", ["", "true"])
    def test_a_loop_of_known_length_is_unrolled(self, condition):
        _, out = run(self.loop(condition))
        np.testing.assert_array_equal(out["y"], ARRAY * 16)
        np.testing.assert_array_equal(out["sums"].ravel(), ARRAY.sum() * np.float32([2, 4, 8, 16]))
        assert out["sums"].shape == (4, 1, 1)

    def test_of_no_iterations_nothing_is_collected(self):
        m = self.loop("")
        m.graph.initializer[0].CopyFrom(weight("count", 0, np.int64))
        _, out = run(m)
        np.testing.assert_array_equal(out["y"], ARRAY)
        assert out["sums"].shape == (0, 1, 1)
        body = m.graph.node[0].attribute[0].g
        body.output[2].CopyFrom(untyped("s"))
        with pytest.raises(UnsupportedError, match="outputs of no iterations is not supported; give 's'"):
            run(m)
        m.graph.node[0].output[1] = ""
        del m.graph.output[1]
        np.testing.assert_array_equal(run(m)[1]["y"], ARRAY)

    def test_the_iteration_and_the_condition_have_the_ranks_that_the_body_declares(self):
        body = graph(
            [node("Gather", ["table", "i"], ["row"]), node("Identity", ["cond"], ["go"])],
            [value("i", (1,), I64), value("cond", (1,), TensorProto.BOOL)],
            [value("go", (1,), TensorProto.BOOL), value("row", (1, 3))],
        )
        loop = node("Loop", ["count", ""], ["rows"], body=body)
        weights = [weight("count", 2, np.int64), weight("table", ARRAY)]
        _, out = run(model([loop, node("Neg", ["x"], ["y"])], [X], [Y, untyped("rows")], weights))
        np.testing.assert_array_equal(out["rows"], ARRAY[:, None])

    def test_iterations_of_loops_in_loops_are_counted(self):
        cond, step, held = value("c", (), TensorProto.BOOL), value("i", (), I64), value("v", (2, 3))
        body = graph([], [step, cond, held], [cond, held])
        for _ in range(3):
            inner = node("Loop", ["count", "c", "v"], ["w"], name="inner", body=body)
            body = graph([inner], [step, cond, held], [cond, value("w", (2, 3))])
        outer = node("Loop", ["count", "true", "x"], ["y"], name="outer", body=body)
        m = model([outer], [X], [Y], [weight("count", 2000, np.int64), weight("true", True, np.bool_)])
        with pytest.raises(ModelError, match="unfolds to more than"):
            run(m)

    def test_a_scan_over_more_than_its_inputs(self):
        body = graph(
            [node("Add", ["a", "b"], ["out"])], [value("a", (2,)), value("b", (2,))], [value("out", (2,))]
        )
        scan = node("Scan", ["x", "x"], ["y"], name="scan", body=body, num_scan_inputs=5)
        with pytest.raises(ModelError, match="num_scan_inputs is 5, but it has 2 inputs"):
            run(model([scan], [X], [untyped("y")]))

    def test_of_no_iterations_but_huge_sizes(self):
        m = self.loop("")
        m.graph.initializer[0].CopyFrom(weight("count", 0, np.int64))
        m.graph.node[0].attribute[0].g.output[2].CopyFrom(value("s", (1 << 40, 1 << 40)))
        with pytest.raises(ModelError, match=r"\(Loop\)"):
            run(m)

    def test_a_scan_is_unrolled(self):
        body = graph(
            [node("Add", ["state", "part"], ["next"]), node("Mul", ["next", "part"], ["out"])],
            [value("state", (2,)), value("part", (2,))],
            [value("next", (2,)), value("out", (2,))],
        )
        scan = node("Scan", ["zero", "x"], ["y", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
                    scan_input_directions=[1], scan_output_axes=[1])  # fmt: skip
        m = model([scan], [X], [untyped("y"), untyped("all")], [weight("zero", [0, 0])])
        _, out = run(m)
        steps = np.cumsum(ARRAY[:, ::-1], 1)
        np.testing.assert_array_equal(out["y"], steps[:, -1])
        np.testing.assert_array_equal(out["all"], steps * ARRAY[:, ::-1])

    def test_weights_of_a_body_are_stored_once(self):
        weights = np.arange(512 * 512, dtype=np.float32).reshape(512, 512) / 512**2
        body = graph(
            [
                node("Constant", [], ["v"], value=weight("v", weights + 1)),
                node("Transpose", ["w"], ["turned"], perm=[1, 0]),
                node("MatMul", ["state", "turned"], ["once"]),
                node("MatMul", ["once", "v"], ["twice"]),
                node("Add", ["twice", "part"], ["next"]),
            ],
            [value("state", (1, 512)), value("part", (1, 512))],
            [value("next", (1, 512))],
            [weight("w", weights)],
        )
        scan = node("Scan", ["zero", "x"], ["y"], body=body, num_scan_inputs=1)
        m = model([scan], [value("x", (5, 1, 512))], [untyped("y")], [weight("zero", np.zeros((1, 512)))])
        x = np.random.default_rng(0).standard_normal((5, 1, 512)).astype(np.float32) / 512**2
        g, out = run(m, {"x": x})
        assert len({id(a) for a in g.constants.values() if a.size == 512 * 512}) == 2
        small = simplify(fold(share(g)))
        assert sum(a.size == 512 * 512 for a in small.constants.values()) == 2
        state = np.zeros((1, 512))
        for part in x.astype(np.float64):
            state = state @ weights.T.astype(np.float64) @ (weights + 1) + part
        for found in (out["y"], interpret(small, {"x": x})["y"]):
            np.testing.assert_allclose(found, state, rtol=1e-4)

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({"scan_output_axes": [7]}, "there is no axis 7 to collect"),
            ({"scan_output_axes": [-3]}, "there is no axis -3 to collect"),
            ({"scan_input_directions": [2]}, r"scan_input_directions is \[2\]; expected 0"),
        ],
    )
    def test_scans_along_what_is_no_axis(self, attributes, message):
        body = graph([node("Neg", ["part"], ["out"])], [value("part", (2,))], [value("out", (2,))])
        scan = node(
            "Scan", ["x"], ["all"], "s", body=body, num_scan_inputs=1, scan_input_axes=[1], **attributes
        )
        with pytest.raises(ModelError, match=message):
            import_onnx(model([scan], [X], [untyped("all")]))


def test_an_attribute_of_no_function_is_no_default():
    softmax = node("Softmax", ["x"], ["y"], "s")
    softmax.attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="at")
    with pytest.raises(ModelError, match="refers to an attribute of a function, but is in none"):
        import_onnx(model([softmax], [X], [Y]))


@pytest.mark.parametrize("dims", [[1] * 65, [0, 1 << 61]])
def test_shapes_that_numpy_has_not(dims):
    w = TensorProto(name="w", data_type=1, dims=dims, raw_data=b"" if 0 in dims else b"1234")
    with pytest.raises(ModelError, match=r"axes; at most 64|the limit is"):
        import_onnx(model([node("Identity", ["w"], ["y"])], [], [untyped("y")], [w]))


def test_padding_that_is_cut_off_again_takes_no_memory():
    """Of a constant, as it is imported: 8 GB on the way."""
    weights = [weight("c", [1, 2, 3, 4, 5]), weight("pads", [1 << 31, -(1 << 31)], np.int64)]
    g = import_onnx(model([node("Pad", ["c", "pads"], ["y"])], [], [untyped("y")], weights))
    np.testing.assert_array_equal(interpret(g, {})["y"], np.zeros(5))


def test_long_ways_to_a_shape_hold_little():
    """A hundred arrays of 40 MB, one after the other."""
    ways = [node("Neg", [f"a{n}"], [f"a{n + 1}"]) for n in range(100)]
    nodes = [
        node("ConstantOfShape", ["size"], ["a0"], value=weight("", [1])),
        *ways,
        node("ReduceMax", ["a100"], ["m"], keepdims=1),
        node("Cast", ["m"], ["repeats"], to=TensorProto.INT64),
        node("Tile", ["v", "repeats"], ["y"]),
    ]
    tracemalloc.start()
    weights = [weight("size", [10_000_000], np.int64)]
    g = import_onnx(model(nodes, [value("v", (3,))], [untyped("y")], weights))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert g.types["y"].dims == (3,) and most < 400e6


def test_functions_that_are_called_by_equal_names():
    functions = [
        onnx.helper.make_function("own", "G", ["a"], ["a"], [], [helper.make_opsetid("", 20)]),
        onnx.helper.make_function(
            "own", "F", ["a"], ["t", "c"],
            [node("Relu", ["a"], ["t"]), node("G", ["t"], ["u"], domain="own"), node("Neg", ["u"], ["c"])],
            [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)],
        ),
    ]  # fmt: skip
    calls = [
        node("F", ["x"], ["p", "q"], "call", domain="own"),
        node("F", ["p"], ["r", "s"], "call", domain="own"),
    ]
    m = model(calls, [X], [untyped("r"), untyped("s")], functions=functions, domains=["own"])
    _, out = run(m)
    np.testing.assert_array_equal(out["s"], -np.maximum(ARRAY, 0))


class TestExternalData:
    def test_a_location_that_is_no_text(self, tmp_path):
        path = self.saved(tmp_path, "@@.bin")
        data = Path(path).read_bytes()
        Path(path).write_bytes(data.replace(b"@@", b"\xff\xfe"))
        with pytest.raises(ModelError, match="not UTF-8"):
            import_onnx(path)

    def saved(self, folder, location="w.bin", data=None, **entries) -> str:
        w = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
        for key, entry in {"location": location, **entries}.items():
            w.external_data.add(key=key, value=str(entry))
        m = model([node("Add", ["x", "w"], ["y"])], [X], [Y], [w])
        path = folder / "m.onnx"
        path.write_bytes(m.SerializeToString())
        if data is not None:
            (folder / "w.bin").write_bytes(data)
        return str(path)

    def test_is_read_beside_the_model(self, tmp_path):
        data = b"\0" * 8 + (ARRAY * 3).tobytes() + b"tail"
        _, out = run(self.saved(tmp_path, data=data, offset=8, length=24))
        np.testing.assert_array_equal(out["y"], ARRAY * 4)

    def test_in_a_subfolder_and_through_a_link_inside(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "real.bin").write_bytes(ARRAY.tobytes())
        (tmp_path / "w.bin").symlink_to(tmp_path / "sub" / "real.bin")
        for location in ("w.bin", "sub/real.bin", "./sub/real.bin"):
            _, out = run(self.saved(tmp_path, location))
            np.testing.assert_array_equal(out["y"], ARRAY * 2)

    @pytest.mark.parametrize(
        ("location", "entries", "message"),
        [
            ("/etc/passwd", {}, "relative"),
            ("../w.bin", {}, "outside"),
            ("sub/../../w.bin", {}, "outside"),
            ("..\\w.bin", {}, "outside"),
            ("C:\\w.bin", {}, "relative"),
            ("", {}, "relative"),
            (".", {}, "folder"),
            ("a\0b", {}, "relative"),
            ("link.bin", {}, "link"),
            ("linked/secret.bin", {}, "link"),
            ("missing.bin", {}, "cannot open"),
            ("sub", {}, "regular file"),
            ("fifo", {}, "regular file"),
            ("w.bin", {"offset": -4}, "offset"),
            ("w.bin", {"offset": 4}, "ends at byte 28"),
            ("w.bin", {"offset": 10**17}, "ends at byte"),
            ("w.bin", {"length": 10**15}, "length"),
            ("w.bin", {"length": 4}, "length"),
            ("w.bin", {"length": "many"}, "length"),
        ],
    )
    def test_elsewhere_or_broken_is_refused(self, tmp_path, location, entries, message):
        folder, secret = tmp_path / "model", tmp_path / "secret.bin"
        folder.mkdir()
        (folder / "sub").mkdir()
        secret.write_bytes(b"\0" * 100)
        (folder / "link.bin").symlink_to(secret)
        (folder / "linked").symlink_to(tmp_path)
        os.mkfifo(folder / "fifo")
        path = self.saved(folder, location, ARRAY.tobytes(), **entries)
        with pytest.raises(ModelError, match="'w'") as caught:
            import_onnx(path)
        assert message in str(caught.value)

    def test_behind_links_of_a_cache(self, tmp_path):
        """As in that of Hugging Face's hub: files of a snapshot are links into another folder."""
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
        for folder in (blobs, snapshot):
            folder.mkdir(parents=True)
        path = Path(self.saved(snapshot, data=ARRAY.tobytes()))
        for number, file in enumerate((path, snapshot / "w.bin")):
            file.rename(blobs / str(number))
            file.symlink_to(Path("../../blobs") / str(number))
        _, out = run(path)
        np.testing.assert_array_equal(out["y"], ARRAY * 2)
        whole = read_whole(path)
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(whole.graph.initializer[0]), ARRAY)
        (snapshot / "w.bin").unlink()
        (tmp_path / "secret").write_bytes(ARRAY.tobytes())
        (snapshot / "w.bin").symlink_to(tmp_path / "secret")
        for read in (import_onnx, read_whole):
            with pytest.raises(ModelError, match="leads outside the model's folder by a link"):
                read(path)

    def test_whole_models_are_read_as_others(self, tmp_path):
        """By hard links, which installers make, by links in the folder, without lengths, in nested graphs."""
        (tmp_path / "real..bin").write_bytes(b"head" + ARRAY.tobytes() + b"tail")
        os.link(tmp_path / "real..bin", tmp_path / "w.bin")
        (tmp_path / "link.bin").symlink_to("w.bin")
        w = TensorProto(name="v", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
        w.external_data.add(key="location", value="link.bin")
        w.external_data.add(key="offset", value="4")
        inner = graph([node("Identity", ["v"], ["z"])], [], [untyped("z")], [w])
        for location in ("w.bin", "link.bin", "real..bin"):
            path = Path(self.saved(tmp_path, location, offset=4))
            m = onnx.load(path, load_external_data=False)
            m.graph.node.insert(0, node("If", ["yes"], ["v"], then_branch=inner, else_branch=inner))
            m.graph.node.append(node("Mul", ["y", "v"], ["u"]))
            m.graph.output.append(untyped("u"))
            m.graph.initializer.append(weight("yes", True, bool))
            path.write_bytes(m.SerializeToString())
            expected = run(path)[1]["u"]
            np.testing.assert_array_equal(expected, (ARRAY * 2) * ARRAY)
            np.testing.assert_array_equal(run(read_whole(path))[1]["u"], expected)

    def test_in_the_attribute_of_a_node(self, tmp_path):
        t = TensorProto(name="t", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value="w.bin")
        m = model([node("Constant", [], ["w"], value=t), node("Add", ["x", "w"], ["y"])], [X], [Y])
        (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
        (tmp_path / "w.bin").write_bytes(ARRAY.tobytes())
        _, out = run(tmp_path / "m.onnx")
        np.testing.assert_array_equal(out["y"], ARRAY * 2)


def test_an_unreadable_path_is_an_input_error(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "none.onnx", "nul\0byte", tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(InputError, match="cannot read the model"):
            import_onnx(path)


def test_every_truncation_is_a_typed_error():
    data = model([node("Add", ["x", "w"], ["y"])], [X], [Y], [weight("w", [1, 2, 3])]).SerializeToString()
    for end in range(len(data)):
        with pytest.raises(BurnishError):
            import_onnx(data[:end])


def test_every_file_of_rules_is_registered():
    files = {path.stem for path in Path(burnish.frontends.onnx.__file__).parent.glob("rules_*.py")}
    assert files == {name for name in vars(burnish.frontends.onnx) if name.startswith("rules_")}
