"""Models that must be refused: name → (model, arguments of import_onnx, error, what the message says)."""

from __future__ import annotations

import numpy as np
import onnx
from burnish.errors import BurnishError, InputError, ModelError, NeedsValueError, UnsupportedError
from onnx import TensorProto, helper

from ..build import F32, I64, X, Y, graph, model, node, untyped, value, weight

Case = tuple[object, dict, type[BurnishError], tuple[str, ...]]

RELU = model([node("Relu", ["x"], ["y"], name="act")], [X], [Y])


def unnamed_dims() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [value("x", (None, 3))], [value("y", (None, 3))])


def with_input(info: onnx.ValueInfoProto) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"], name="act")], [info], [untyped("y")])


def string_input() -> onnx.ModelProto:
    return model(
        [node("Identity", ["x"], ["y"], name="copy")], [value("x", (2,), TensorProto.STRING)], [untyped("y")]
    )


def sequence_input() -> onnx.ModelProto:
    info = helper.make_tensor_sequence_value_info("x", F32, (2,))
    return model([node("SequenceLength", ["x"], ["y"], name="len")], [info], [value("y", (), I64)])


def sparse_initializer() -> onnx.ModelProto:
    m = model([node("Add", ["x", "w"], ["y"], name="add")], [X], [Y])
    values, indices = weight("w", [1.0]), weight("w_i", [1], np.int64)
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [6]))
    return m


def nested_ifs(depth: int) -> onnx.ModelProto:
    inner = graph([node("Relu", ["x"], ["r"])], [], [value("r", (2, 3))])
    for level in range(depth):
        branch = node("If", ["c"], [f"o{level}"], name=f"if{level}", then_branch=inner, else_branch=inner)
        inner = graph([branch], [], [value(f"o{level}", (2, 3))])
        for a in inner.node[0].attribute[1:]:  # one deep branch is enough
            a.g.CopyFrom(graph([node("Relu", ["x"], ["r"])], [], [value("r", (2, 3))]))
    return model(inner.node, [X, value("c", (), TensorProto.BOOL)], [untyped(f"o{depth - 1}")])


def recursive_function() -> onnx.ModelProto:
    body = [node("F", ["a"], ["b"], name="inner", domain="own")]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("own", 1)])
    return model(
        [node("F", ["x"], ["y"], name="call", domain="own")], [X], [Y], functions=[function], domains=["own"]
    )


def exponential_functions(depth: int) -> onnx.ModelProto:
    """Each function calls the one before twice: 2**depth nodes when inlined."""
    imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)]
    functions = [helper.make_function("own", "F0", ["a"], ["b"], [node("Exp", ["a"], ["b"])], imports)]
    for n in range(1, depth):
        inner = f"F{n - 1}"
        body = [node(inner, ["a"], ["t"], domain="own"), node(inner, ["t"], ["b"], domain="own")]
        functions.append(helper.make_function("own", f"F{n}", ["a"], ["b"], body, imports))
    call = node(f"F{depth - 1}", ["x"], ["y"], name="call", domain="own")
    return model([call], [X], [Y], functions=functions, domains=["own"])


def wrong_raw_data() -> onnx.ModelProto:
    w = weight("w", np.ones((2, 3)))
    w.raw_data = w.raw_data[:-3]
    return model([node("Add", ["x", "w"], ["y"])], [X], [Y], [w])


def huge_initializer() -> onnx.ModelProto:
    w = weight("w", np.ones((2, 3)))
    del w.dims[:]
    w.dims.extend([10**9, 10**9])
    return model([node("Add", ["x", "w"], ["y"])], [X], [Y], [w])


def external(location: str) -> onnx.ModelProto:
    w = TensorProto(name="w", data_type=F32, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=location)
    return model([node("Add", ["x", "w"], ["y"])], [X], [Y], [w])


def external_attribute() -> onnx.ModelProto:
    t = TensorProto(name="t", data_type=F32, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="/etc/passwd")
    return model([node("Constant", [], ["w"], name="c", value=t), node("Add", ["x", "w"], ["y"])], [X], [Y])


def computed_shape() -> onnx.ModelProto:
    nodes = [node("Abs", ["s"], ["s2"]), node("Reshape", ["x", "s2"], ["y"], name="reshape")]
    return model(nodes, [X, value("s", (2,), I64)], [untyped("y")])


def open_condition() -> onnx.ModelProto:
    branch = graph([node("Relu", ["x"], ["r"])], [], [value("r", (2, 3))])
    other = graph([node("Exp", ["x"], ["r"])], [], [value("r", (2, 3))])
    choice = node("If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=other)
    return model([choice], [X, value("c", (), TensorProto.BOOL)], [untyped("y")])


def endless_loop() -> onnx.ModelProto:
    body = graph(
        [node("Identity", ["cond"], ["go"]), node("Exp", ["v"], ["w"])],
        [value("i", (), I64), value("cond", (), TensorProto.BOOL), value("v", (2, 3))],
        [value("go", (), TensorProto.BOOL), value("w", (2, 3))],
    )
    loop = node("Loop", ["", "true", "x"], ["y"], name="forever", body=body)
    return model([loop], [X], [untyped("y")], [weight("true", True, np.bool_)])


def one_node(inner: onnx.NodeProto, *weights: TensorProto, shape=(2, 3), outputs=("y",)) -> onnx.ModelProto:
    return model([inner], [value("x", shape)], list(map(untyped, outputs)), weights)


def ints(name: str, *values: int) -> TensorProto:
    return weight(name, values, np.int64)


VALUES: dict[str, Case] = {
    "blocks of a matrix": (
        one_node(node("DepthToSpace", ["x"], ["y"], "blocks", blocksize=1)),
        {},
        ModelError,
        ("'blocks' (DepthToSpace): an input is f32[2,3], expected 4 axes",),
    ),
    "unit matrix of a cube": (
        one_node(node("EyeLike", ["x"], ["y"], "eye"), shape=(2, 2, 2)),
        {},
        ModelError,
        ("'eye' (EyeLike): an input is f32[2,2,2], expected 2 axes",),
    ),
    "windows of two sizes": (
        one_node(node("HannWindow", ["n"], ["y"], "hann"), ints("n", 3, 4)),
        {},
        ModelError,
        ("'hann' (HannWindow): its size has 2 elements, expected one",),
    ),
    "range that stands": (
        one_node(node("Range", ["n", "n", "n"], ["y"], "range"), weight("n", 0)),
        {},
        ModelError,
        ("'range' (Range): its delta is 0; expected another number",),
    ),
    "slice that stands": (
        one_node(node("Slice", ["x", "n", "n", "n", "n"], ["y"], "cut"), ints("n", 0)),
        {},
        ModelError,
        ("'cut' (Slice): its step along axis 0 is 0; expected another whole number",),
    ),
    "transform of nothing": (
        one_node(node("DFT", ["x", "n"], ["y"], "dft"), weight("n", 0, np.int64), shape=(1, 4, 1)),
        {},
        ModelError,
        ("'dft' (DFT): dft_length is 0; expected 1 or more",),
    ),
    "frames of a vector": (
        one_node(node("STFT", ["x", "n"], ["y"], "stft"), weight("n", 1, np.int64), shape=(8,)),
        {},
        ModelError,
        ("'stft' (STFT): an input is f32[8], expected 2 axes",),
    ),
    "windows that stand": (
        one_node(node("MaxPool", ["x"], ["y"], "pool", kernel_shape=[1], strides=[0]), shape=(1, 1, 4)),
        {},
        ModelError,
        ("'pool' (MaxPool): strides [0]: expected numbers from 1 on",),
    ),
    "output that stands twice": (
        one_node(node("Relu", ["x"], ["y"]), outputs=("y", "y")),
        {},
        ModelError,
        ("graph output 'y' stands twice",),
    ),
}

CASES: dict[str, Case] = {
    **VALUES,
    "not a protobuf": (b"this is no model", {}, ModelError, ("not an ONNX model",)),
    "empty": (b"", {}, ModelError, ("empty",)),
    "truncated": (RELU.SerializeToString()[:-20], {}, ModelError, ("not an ONNX model",)),
    "no opset": (
        onnx.ModelProto(ir_version=10, graph=RELU.graph).SerializeToString(),
        {},
        ModelError,
        ("no opset",),
    ),
    "missing file": ("no/such/model.onnx", {}, InputError, ("no/such/model.onnx",)),
    "not a model at all": (3, {}, InputError, ("int",)),
    "opset too old": (
        model([node("Relu", ["x"], ["y"])], [X], [Y], opset=6),
        {},
        UnsupportedError,
        ("6", "7 to"),
    ),
    "opset too new": (
        model([node("Relu", ["x"], ["y"])], [X], [Y], opset=999),
        {},
        UnsupportedError,
        ("999", "7 to"),
    ),
    "unknown operator": (
        model([node("Foo", ["x"], ["y"], name="foo1")], [X], [Y]),
        {},
        UnsupportedError,
        ("'foo1' (Foo)", "domain ai.onnx, opset 20"),
    ),
    "unknown operator of another domain": (
        model([node("Bar", ["x"], ["y"], name="bar1", domain="com.x")], [X], [Y], domains=["com.x"]),
        {},
        UnsupportedError,
        ("'bar1' (Bar)", "domain com.x, opset 1"),
    ),
    "unknown operator without a name": (
        model([node("Foo", ["x"], ["y"])], [X], [Y]),
        {},
        UnsupportedError,
        ("'y' (Foo)",),
    ),
    "domain without opset": (
        model([node("Bar", ["x"], ["y"], name="bar1", domain="com.x")], [X], [Y]),
        {},
        ModelError,
        ("com.x",),
    ),
    "unsorted nodes": (
        model([node("Exp", ["t"], ["y"], name="second"), node("Relu", ["x"], ["t"])], [X], [Y]),
        {},
        ModelError,
        ("second", "sorted"),
    ),
    "cycle": (
        model(
            [node("Add", ["x", "u"], ["t"], name="a"), node("Relu", ["t"], ["u"], name="b")],
            [X],
            [value("u", (2, 3))],
        ),
        {},
        ModelError,
        ("u", "sorted"),
    ),
    "value defined twice": (
        model([node("Exp", ["x"], ["y"], name="a"), node("Relu", ["x"], ["y"], name="b")], [X], [Y]),
        {},
        ModelError,
        ("'y'",),
    ),
    "missing input": (
        model([node("Relu", ["z"], ["y"], name="act")], [X], [Y]),
        {},
        ModelError,
        ("act", "z"),
    ),
    "too few inputs": (model([node("Add", ["x"], ["y"], name="add1")], [X], [Y]), {}, ModelError, ("add1",)),
    "missing output": (model([node("Relu", ["x"], ["t"])], [X], [Y]), {}, ModelError, ("y",)),
    "output twice": (model([node("Relu", ["x"], ["y"])], [X], [Y, Y]), {}, ModelError, ("output",)),
    "output is input": (model([node("Relu", ["x"], ["y"])], [X], [Y, X]), {}, UnsupportedError, ("'x'",)),
    "initializer twice": (
        model([node("Add", ["x", "w"], ["y"])], [X], [Y], [weight("w", 1), weight("w", 2)]),
        {},
        ModelError,
        ("'w'", "twice"),
    ),
    "shapes do not fit": (
        model([node("MatMul", ["x", "x"], ["y"], name="product")], [X], [untyped("y")]),
        {},
        ModelError,
        ("product", "MatMul"),
    ),
    "declared dtype is wrong": (
        model([node("Relu", ["x"], ["y"], name="act")], [X], [value("y", (2, 3), I64)]),
        {},
        ModelError,
        ("act", "'y'", "i64"),
    ),
    "open named size": (with_input(value("x", ("N", 3))), {}, UnsupportedError, ("--dim N=", "--shape x:")),
    "open unnamed size": (unnamed_dims(), {}, UnsupportedError, ("--shape x:…x3",)),
    "no shape": (with_input(value("x", None)), {}, UnsupportedError, ("--shape x:",)),
    "size given twice": (
        with_input(value("x", ("N", 3))),
        {"shapes": {"x": (2, 3)}, "dims": {"N": 5}},
        InputError,
        ("'x'", "[2, 3]"),
    ),
    "shape of another rank": (RELU, {"shapes": {"x": (2, 3, 1)}}, InputError, ("'x'",)),
    "fixed size overridden": (RELU, {"shapes": {"x": (3, 3)}}, InputError, ("'x'",)),
    "negative size": (with_input(value("x", ("N", 3))), {"dims": {"N": -1}}, InputError, ("'N'",)),
    "unknown input": (RELU, {"shapes": {"z": (2, 3)}}, InputError, ("'z'", "x")),
    "unknown size": (RELU, {"dims": {"N": 1}}, InputError, ("'N'",)),
    "value of another dtype": (RELU, {"values": {"x": np.ones((2, 3))}}, InputError, ("'x'", "float64")),
    "value of another shape": (RELU, {"values": {"x": np.ones((3, 3), np.float32)}}, InputError, ("'x'",)),
    "string input": (string_input(), {}, UnsupportedError, ("'copy' (Identity)", "string")),
    "float8 input": (
        with_input(value("x", (2,), TensorProto.FLOAT8E5M2)),
        {},
        UnsupportedError,
        ("'act' (Relu)", "float8e5m2"),
    ),
    "sequence input": (sequence_input(), {}, UnsupportedError, ("'len' (SequenceLength)", "sequence")),
    "sparse initializer": (sparse_initializer(), {}, UnsupportedError, ("'w'", "sparse")),
    "graphs nested too deep": (nested_ifs(28), {}, ModelError, ("nested deeper than",)),
    "recursive function": (recursive_function(), {}, ModelError, ("own::F", "recursive")),
    "functions nested too deep": (exponential_functions(30), {}, ModelError, ("'call' (F29)", "deeper")),
    "functions that multiply": (exponential_functions(20), {}, ModelError, ("'call' (F19)", "unfolds")),
    "initializer with too little data": (wrong_raw_data(), {}, ModelError, ("name: w", "21 bytes")),
    "initializer that claims 10^18 elements": (huge_initializer(), {}, ModelError, ("name: w", "too small")),
    "input of 10^15 elements": (with_input(value("x", (10**9, 10**6))), {}, ModelError, ("'x'", "limit")),
    "ConstantOfShape of 10^15 elements": (
        model(
            [node("ConstantOfShape", ["s"], ["c"], name="fill"), node("ReduceSum", ["c"], ["y"])],
            [X],
            [untyped("y")],
            [weight("s", [10**8, 10**7], np.int64)],
        ),
        {},
        ModelError,
        ("fill", "limit"),
    ),
    "Expand to 10^15 elements": (
        model(
            [node("Expand", ["w", "s"], ["y"], name="grow")],
            [X],
            [untyped("y")],
            [weight("w", [1.0]), weight("s", [10**8, 10**7], np.int64)],
        ),
        {},
        ModelError,
        ("grow", "limit"),
    ),
    "Range of 10^15 elements": (
        model(
            [node("Range", ["a", "b", "d"], ["y"], name="range")],
            [X],
            [untyped("y")],
            [weight("a", 0, np.int64), weight("b", 10**15, np.int64), weight("d", 1, np.int64)],
        ),
        {},
        ModelError,
        ("range",),
    ),
    "Range of 10^9 elements": (
        model(
            [node("Range", ["a", "b", "d"], ["y"], name="range")],
            [X],
            [untyped("y")],
            [weight("a", 0, np.int64), weight("b", 10**9, np.int64), weight("d", 1, np.int64)],
        ),
        {},
        ModelError,
        ("range", "limit"),
    ),
    "Range without end": (
        model(
            [node("Range", ["a", "b", "d"], ["y"], name="range")],
            [X],
            [untyped("y")],
            [weight("a", 0.0), weight("b", np.nan), weight("d", 1.0)],
        ),
        {},
        ModelError,
        ("range", "never ends"),
    ),
    "Tile to 10^15 elements": (
        model(
            [node("Tile", ["x", "r"], ["y"], name="tile")],
            [X],
            [untyped("y")],
            [weight("r", [10**8, 10**7], np.int64)],
        ),
        {},
        ModelError,
        ("tile", "limit"),
    ),
    "OneHot of 10^15 elements": (
        model(
            [node("OneHot", ["i", "d", "v"], ["y"], name="hot")],
            [value("i", (3,), I64)],
            [untyped("y")],
            [weight("d", 10**15, np.int64), weight("v", [0, 1])],
        ),
        {},
        ModelError,
        ("hot", "limit"),
    ),
    "EyeLike of 10^12 elements": (
        model(
            [node("ConstantOfShape", ["s"], ["c"], name="fill"), node("EyeLike", ["c"], ["y"], name="eye")],
            [X],
            [untyped("y")],
            [weight("s", [10**6, 10**6], np.int64)],
        ),
        {},
        ModelError,
        ("fill", "limit"),
    ),
    "external data without a path": (external("w.bin"), {}, ModelError, ("'w'", "w.bin", "path")),
    "external data in an attribute": (
        external_attribute(),
        {},
        ModelError,
        ("'c' (Constant)", "/etc/passwd"),
    ),
    "shape computed from an input": (computed_shape(), {}, NeedsValueError, ("'reshape' (Reshape)", "'s'")),
    "condition from an input": (open_condition(), {}, NeedsValueError, ("'choice' (If)", "'c'")),
    "too many filters": (
        model(
            [node("MelWeightMatrix", [*"nlrab"], ["y"], name="mel")],
            [X],
            [untyped("y")],
            [weight(n, v, np.int64) for n, v in zip("nlr", (60_000_000, 1, 8000))]
            + [weight(n, v) for n, v in zip("ab", (0.0, 1.0))],
        ),
        {},
        UnsupportedError,
        ("'mel' (MelWeightMatrix)", "num_mel_bins is 60000000"),
    ),
    "endless loop": (endless_loop(), {}, UnsupportedError, ("'forever' (Loop)", "fewer iterations")),
}
