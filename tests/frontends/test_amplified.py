"""Small models that unfold to much: refused, or imported with little work."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.errors import ModelError, UnsupportedError
from burnish.frontends.onnx import builder
from burnish.frontends.onnx.importer import import_onnx
from onnx import AttributeProto, TensorProto, helper

from .build import I64, X, Y, graph, model, node, untyped, value, weight

BOOL = TensorProto.BOOL
COUNTED = [value("i", (), I64), value("c", (), BOOL)]
TRUE = weight("true", True, np.bool_)
V = value("v0", (2, 3))


@pytest.fixture
def few_values(monkeypatch):
    monkeypatch.setattr(builder, "MAX_VALUES", 50_000)


def looped(nodes, carried=(("v", "v", (2, 3)),), weights=(), times=2047):
    """A model of a Loop: `carried` are (name before, name after, shape)."""
    body = graph(
        [node("Identity", ["c"], ["go"]), *nodes] if all("go" not in n.output for n in nodes) else nodes,
        [*COUNTED, *(value(before, shape) for before, _, shape in carried)],
        [value("go", (), BOOL), *(value(after, shape) for _, after, shape in carried)],
        weights,
    )
    results = [f"r{n}" for n in range(len(carried))]
    begins = [f"{before}0" for before, _, _ in carried]
    loop = node("Loop", ["count", "true", *begins], results, name="loop", body=body)
    return [loop], [weight("count", times, np.int64), TRUE]


def test_initializers_of_bodies_are_counted(few_values):
    weights = [weight(f"w{n}", n) for n in range(5_000)]
    nodes, given = looped([], weights=weights)
    m = model([*nodes, node("Relu", ["x"], ["y"])], [X, V], [Y], given)
    with pytest.raises(
        ModelError, match=r"node 'loop/\d+': the model unfolds to more than .* values; export"
    ):
        import_onnx(m)


@pytest.mark.parametrize("op", ["Sum", "Max", "Mean"])
def test_operands_are_counted(few_values, op):
    m = model([node(op, ["x"] * 20_000, ["y"], name="many")], [X], [Y])
    with pytest.raises(ModelError, match=r"node 'many': the model unfolds to more than .* values"):
        import_onnx(m)


def test_operands_of_each_iteration_are_counted(few_values):
    nodes, given = looped([node("Concat", ["x"] * 5_000, ["all"], axis=0)])
    m = model([*nodes, node("Relu", ["x"], ["y"])], [X, V], [Y], given)
    with pytest.raises(ModelError, match=r"'loop/\d+/Concat:all': the model unfolds to more than .* values"):
        import_onnx(m)


def test_many_parts_of_equal_names_take_linear_time():
    parts = [f"p{n}" for n in range(20_000)]
    begin = time.process_time()
    g = import_onnx(model([node("Split", ["x"], parts)], [value("x", (20_000,))], [untyped(parts[-1])]))
    assert len(g.nodes) == 1 and time.process_time() - begin < 20
    chain = [node("Sum", [f"a{n}", f"a{n}", "x"], [f"a{n + 1}"], "same") for n in range(5_000)]
    begin = time.process_time()
    import_onnx(model(chain, [X, value("a0", (2, 3))], [untyped("a5000")]))
    assert time.process_time() - begin < 20


def test_constants_that_are_outputs_take_linear_time():
    weights = [weight(f"w{n}", n) for n in range(5_000)]
    chain = [node("Neg", [f"a{n}"], [f"a{n + 1}"]) for n in range(5_000)]
    outputs = [untyped(name) for name in (*(w.name for w in weights), "a5000")]
    begin = time.process_time()
    g = import_onnx(model(chain, [value("a0", (3,))], outputs, weights))
    assert len(g.outputs) == 5_001 and time.process_time() - begin < 20


def test_an_output_that_is_another_output_which_is_a_constant():
    nodes = [node("Identity", ["w"], ["a"]), node("Add", ["x", "w"], ["y"])]
    for names in ("awy", "way", "ywa"):
        g = import_onnx(model(nodes, [X], list(map(untyped, names)), [weight("w", [1, 2, 3])]))
        out = interpret(g, {"x": np.zeros((2, 3), np.float32)})
        assert all((out[name] == [1, 2, 3]).all() for name in "awy")


def test_defaults_of_functions_are_kept_once():
    """A hundred calls of a function with a default of 4 MB."""
    constant = node("Constant", [], ["w"])
    constant.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, ref_attr_name="t"))
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [constant, node("Add", ["a", "w"], ["b"])], [helper.make_opsetid("", 20)]
    )
    function.attribute_proto.append(helper.make_attribute("t", weight("t", np.ones((1 << 19, 2, 1)))))
    calls = [node("F", [f"a{n}"], [f"a{n + 1}"], domain="own") for n in range(100)]
    m = model(calls, [value("a0", (1, 2, 3))], [untyped("a100")], functions=[function], domains=["own"])
    tracemalloc.start()
    g = import_onnx(m)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({id(a) for a in g.constants.values()}) == 1 and most < 64 << 20


def test_attributes_that_differ_from_call_to_call_are_bound_anew():
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope"))
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [leaky], [helper.make_opsetid("", 20)], attributes=["slope"]
    )
    calls = [
        node("F", ["x"], ["p"], domain="own", slope=0.5),
        node("F", ["x"], ["q"], domain="own", slope=0.25),
        node("F", ["x"], ["r"], domain="own"),
    ]
    m = model(calls, [X], list(map(untyped, "pqr")), functions=[function], domains=["own"])
    out = interpret(import_onnx(m), {"x": np.full((2, 3), -8, np.float32)})
    assert [out[name][0, 0] for name in "pqr"] == [-4, -2, np.float32(-8) * np.float32(0.01)]


def test_both_branches_are_walked_once():
    big = graph([node("Neg", ["x"], [f"n{n}"]) for n in range(20_000)], [], [value("n0", (2, 3))])
    small = graph([node("Neg", ["x"], ["n"])], [], [value("n", (2, 3))])
    nodes, given = looped([node("If", ["true"], ["r"], then_branch=small, else_branch=big)])
    begin = time.process_time()
    import_onnx(model([*nodes, node("Relu", ["x"], ["y"])], [X, V], [Y], given))
    assert time.process_time() - begin < 20


def asked(step, start, count):
    """A Loop whose condition is computed from what it carries."""
    nodes = [
        step,
        node("ReduceSum", ["w"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["go"]),
    ]
    start = node("ConstantOfShape", ["size"], ["v0"], value=weight("", [start]))
    loops, given = looped(nodes, [("v", "w", (count,))], times=200)
    given += [weight("zero", 0), weight("size", [count], np.int64), weight("one", 1)]
    m = model([start, *loops, node("Add", ["x", "r0"], ["y"])], [value("x", (1,))], [untyped("y")], given)
    return m


def test_what_was_evaluated_is_not_evaluated_again(monkeypatch):
    evaluated = []
    evaluate = builder.evaluate
    monkeypatch.setattr(builder, "evaluate", lambda *a: evaluated.append(a) or evaluate(*a))
    m = asked(node("Add", ["v", "one"], ["w"]), 1, 300_000)
    g = import_onnx(m)
    assert len(evaluated) <= 201 * 3 + 10
    assert sum(n.op.name == "Binary" for n in g.nodes) == 201


def test_work_on_constants_is_bounded(monkeypatch):
    monkeypatch.setattr(builder, "MAX_WORK", 10_000_000)
    with pytest.raises(UnsupportedError, match=r"'loop' .*: its constants are too large, it takes too long"):
        import_onnx(asked(node("Add", ["v", "one"], ["w"]), 1, 300_000))


def test_products_of_everything_with_everything_stay():
    """Each would take a minute."""
    outer = node("Einsum", ["a", "b"], ["all"], equation="i,j->")
    nodes, given = looped([outer, node("Add", ["v", "all"], ["w"])], [("v", "w", ())], times=20)
    given += [weight("a", np.ones(100_000)), weight("b", np.ones(100_000))]
    g = import_onnx(model(nodes, [value("v0", ())], [untyped("r0")], given))
    assert sum(n.op.name == "Einsum" for n in g.nodes) == 20


def test_made_up_constants_are_counted(monkeypatch):
    monkeypatch.setattr(builder, "MAX_MADE_TOTAL_BYTES", 10_000_000)
    nodes, given = looped([node("Range", ["none", "end", "one"], ["all"])])
    given += [weight("none", 0, np.int64), weight("end", 10_000, np.int64), weight("one", 1, np.int64)]
    with pytest.raises(
        ModelError, match=r"loop/\d+/Range.* unfolds to more than 10,[\d,]+ bytes of constants"
    ):
        import_onnx(model([*nodes, node("Relu", ["x"], ["y"])], [X, V], [Y], given))
