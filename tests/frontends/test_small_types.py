"""Weights of a few bits, and floats of eight, which a wider type holds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import interpret, verify
from burnish.errors import ModelError, UnsupportedError
from burnish.frontends.onnx.importer import import_onnx
from burnish.frontends.onnx.small_types import stored_array
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .build import F32, graph, model, node, untyped, value, weight

INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")
FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
ROWS, COLUMNS = 5, 7  # an odd number of elements: the last byte is not full


def stored(name: str, kind: str, shape=(ROWS, COLUMNS), raw: bool = False) -> onnx.TensorProto:
    """Every number that the type has, over and over."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    bits = {"2": 2, "4": 4, "1": 4}[kind[-1]] if kind in (*INTEGERS, "FLOAT4E2M1") else 8
    every = (np.arange(np.prod(shape)) * 3 % (1 << bits)).astype(np.uint8).view(dtype).astype(np.float32)
    values = np.nan_to_num(every, nan=1, posinf=2, neginf=-2).astype(dtype).reshape(shape)
    tensor = numpy_helper.from_array(values, name)
    if not raw:
        packed = np.frombuffer(tensor.raw_data, np.uint8).tolist()
        tensor.ClearField("raw_data")
        tensor.int32_data.extend(packed)
    return tensor


def check(m: onnx.ModelProto, source=None) -> None:
    """Against ONNX's reference implementation."""
    g = import_onnx(m if source is None else source)
    verify(g)
    x = np.linspace(-1, 1, 3 * ROWS, dtype=np.float32).reshape(3, ROWS)
    (expected,) = ReferenceEvaluator(m).run(None, {"x": x})
    np.testing.assert_allclose(interpret(g, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def product(weights, attributes=None, inputs=("q", "s"), nodes=()) -> onnx.ModelProto:
    made = [
        *nodes,
        node("DequantizeLinear", list(inputs), ["w"], name="real", **(attributes or {"axis": 1})),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    return model(made, [value("x", (3, ROWS))], [value("y", (3, COLUMNS))], weights, opset=25, ir=11)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_weights_of_a_product(kind, raw):
    scale = weight("s", np.linspace(0.5, 2, COLUMNS))
    check(product([stored("q", kind, raw=raw), scale]))


@pytest.mark.parametrize("kind", INTEGERS)
def test_blocks_and_zero_points(kind):
    scale = weight("s", np.linspace(0.5, 2, 3 * COLUMNS).reshape(3, COLUMNS))
    zero = stored("z", kind, (3, COLUMNS), raw=True)
    blocks = {"axis": 0, "block_size": 2}
    check(product([stored("q", kind, raw=True), scale, zero], blocks, ("q", "s", "z")))


@pytest.mark.parametrize("kind", ["INT4", "FLOAT8E5M2"])
def test_a_constant_node_and_a_cast(kind):
    constant = node("Constant", [], ["q"], value=stored("", kind, raw=True))
    m = product([weight("s", np.float32(0.25))], nodes=[constant])
    m.graph.value_info.append(value("q", (ROWS, COLUMNS), getattr(TensorProto, kind)))
    check(m)
    nodes = [node("Cast", ["q"], ["w"], to=F32), node("MatMul", ["x", "w"], ["y"])]
    check(model(nodes, [value("x", (3, ROWS))], [value("y", (3, COLUMNS))], [stored("q", kind)], opset=25))


def test_data_in_a_file_of_its_own(tmp_path):
    m = product([stored("q", "UINT4", raw=True), weight("s", np.ones(COLUMNS))])
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="data", size_threshold=0)
    check(onnx.load(path), path)


def test_other_operators_refuse_them():
    q, out = stored("q", "INT4"), [untyped("y")]
    for reader in ("Relu", "Transpose"):
        m = model([node(reader, ["q"], ["y"], name="reads")], [], out, [q], opset=25)
        with pytest.raises(UnsupportedError, match=r"'reads'.*'q' has the element type int4, which only Deq"):
            import_onnx(m)
    zero = [weight("s", np.float32(1)), stored("z", "INT4", ())]
    m = model([node("QuantizeLinear", ["x", "s", "z"], ["y"])], [value("x", (2,))], out, zero, opset=25)
    with pytest.raises(UnsupportedError, match="'z' has the element type int4"):
        import_onnx(m)
    with pytest.raises(UnsupportedError, match="graph output 'q' has the element type int4"):
        import_onnx(model([], [], [value("q", (ROWS, COLUMNS), TensorProto.INT4)], [q], opset=25))


def test_bodies_of_conditions_read_them():
    inner = graph([node("DequantizeLinear", ["q", "s"], ["w"], axis=1)], outputs=[untyped("w")], name="then")
    choice = node("If", ["yes"], ["real"], then_branch=inner, else_branch=inner)
    nodes = [choice, node("MatMul", ["x", "real"], ["y"])]
    weights = [stored("q", "INT4"), weight("s", np.ones(COLUMNS)), weight("yes", True, bool)]
    check(model(nodes, [value("x", (3, ROWS))], [value("y", (3, COLUMNS))], weights, opset=25))


def test_bodies_have_data_in_a_file(tmp_path):
    held = [stored("q", "INT4", raw=True), weight("s", np.ones(COLUMNS))]
    dequantise = node("DequantizeLinear", ["q", "s"], ["w"], axis=1)
    inner = graph([dequantise], outputs=[untyped("w")], weights=held, name="then")
    nodes = [node("If", ["yes"], ["real"], then_branch=inner, else_branch=inner)]
    nodes.append(node("MatMul", ["x", "real"], ["y"]))
    m = model(
        nodes, [value("x", (3, ROWS))], [value("y", (3, COLUMNS))], [weight("yes", True, bool)], opset=25
    )
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="data", size_threshold=0)
    assert onnx.load(path, load_external_data=False).graph.node[0].attribute[0].g.initializer[0].external_data
    check(onnx.load(path), path)


def test_what_does_not_fit_is_refused():
    scale = weight("s", np.ones(COLUMNS))
    for raw in (True, False):
        q = stored("q", "INT4", raw=raw)
        q.dims[:] = (ROWS, COLUMNS + 2)
        with pytest.raises(ModelError, match=r"^q: int4\[5, 9\] takes 23 bytes, but 18 are there"):
            stored_array(q, None, "q")
        q.dims[:] = (1 << 40, 1 << 40)
        with pytest.raises(ModelError, match=r"^q claims .* the limit is"):
            stored_array(q, None, "q")
    with pytest.raises(UnsupportedError, match=r"'real'.*dequantising f32"):
        import_onnx(product([weight("q", np.ones((ROWS, COLUMNS))), scale]))
