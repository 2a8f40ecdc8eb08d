from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from burnish import onnx_backend
from burnish.errors import InputError, NeedsValueError, UnsupportedError
from onnx import TensorProto, helper

I64 = TensorProto.INT64
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Recorder:
    """Stands in for `pipeline.compile`: notes what it is asked for, and wants the value of `s`."""

    def __init__(self, wants: tuple[str, ...] = ()):
        self.calls: list[dict] = []
        self.wants = wants

    def __call__(self, model, **options):
        self.calls.append(options)
        missing = tuple(w for w in self.wants if w not in options.get("values", {}))
        if missing:
            raise NeedsValueError("needed", missing[:1])
        return self

    def run(self, feed):
        self.fed = feed
        return {"y": np.float32(len(self.calls)), "z": np.float32(-1)}


def model(*inputs: tuple[str, int, tuple], outputs=("y", "z")) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(*i) for i in inputs]
    graph = helper.make_graph([], "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    graph.initializer.append(onnx.numpy_helper.from_array(X, "w"))
    return helper.make_model(graph)


STATIC = model(("x", 1, (2, 3)), ("w", 1, (2, 3)), ("s", I64, (2,)))


def test_a_static_model_is_compiled_once_and_at_once():
    compile = Recorder()
    rep = onnx_backend.BurnishRep(STATIC, compile, threads=2)
    assert compile.calls == [{"threads": 2}]
    outputs = rep.run([X, np.array([3, 2])])
    assert rep.run({"s": np.array([3, 2]), "x": X}) == outputs == (np.float32(1), np.float32(-1))
    assert list(compile.fed) == ["x", "s"]


@pytest.mark.parametrize("name", ["w", "z"])
def test_what_is_no_input_is_refused(name):
    """Among others what a constant of the model stands for, which would not be read."""
    rep = onnx_backend.BurnishRep(STATIC, Recorder())
    with pytest.raises(InputError, match=f"there is no input '{name}'; the model takes x, s"):
        rep.run({"x": X, "s": np.array([3, 2]), name: X + 1})


def test_what_is_no_collection_of_inputs_is_refused():
    rep = onnx_backend.BurnishRep(STATIC, Recorder())
    for inputs in (5, None, 1.5):
        with pytest.raises(InputError, match="inputs: expected a list or dict of arrays, found "):
            rep.run(inputs)


def test_what_numpy_refuses_is_an_error_of_the_input():
    class Odd:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("Got unsupported ScalarType BFloat16")

    rep = onnx_backend.BurnishRep(STATIC, Recorder())
    with pytest.raises(InputError, match=r"input 'x': Odd is no array of numpy: Got unsupported"):
        rep.run([Odd(), np.array([3, 2])])


def test_a_node_says_how_many_inputs_it_has():
    with pytest.raises(InputError, match="Add has 2 inputs, but 1 are given"):
        onnx_backend.BurnishBackend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X])


def test_what_is_compiled_in_is_no_input():
    compile = Recorder(wants=("s",))
    rep = onnx_backend.BurnishRep(STATIC, compile, values={"s": np.array([3, 2])})
    rep.run([X])
    assert list(compile.fed) == ["x"] and len(compile.calls) == 1


def test_a_negative_size_is_open():
    compile = Recorder()
    rep = onnx_backend.BurnishRep(model(("x", 1, (-1, 3))), compile)
    assert compile.calls == []
    rep.run([X])
    assert compile.calls == [{"shapes": {"x": (2, 3)}, "values": {}}]


@pytest.mark.parametrize("limit", ["number", "memory"])
def test_the_modules_of_the_shapes_that_came_last_are_kept(monkeypatch, limit):
    compile = Recorder()
    monkeypatch.setattr(onnx_backend, "KEPT", 8 if limit == "number" else 100)
    if limit == "memory":
        compile.threads, compile.plan = 1, SimpleNamespace(memory=lambda threads: threads * 125)
        monkeypatch.setattr(onnx_backend, "MOST_MEMORY", 1000)
    rep = onnx_backend.BurnishRep(model(("x", 1, ("n", 3))), compile)
    for n in range(1, 8 + 1):
        rep.run([np.zeros((n, 3), np.float32)])
    rep.run([np.zeros((1, 3), np.float32)])
    rep.run([np.zeros((50, 3), np.float32)])
    assert len(compile.calls) == 8 + 1
    rep.run([np.zeros((1, 3), np.float32)])
    assert len(compile.calls) == 8 + 1, "it was used since"
    rep.run([np.zeros((2, 3), np.float32)])
    assert len(compile.calls) == 8 + 2, "it was not"


def test_two_modules_stay_whatever_memory_they_take(monkeypatch):
    compile = Recorder()
    compile.threads, compile.plan = 1, SimpleNamespace(memory=lambda threads: 1000)
    monkeypatch.setattr(onnx_backend, "MOST_MEMORY", 10)
    rep = onnx_backend.BurnishRep(model(("x", 1, ("n", 3))), compile)
    for n in (1, 2, 1, 2, 3, 3, 2):
        rep.run([np.zeros((n, 3), np.float32)])
    assert len(compile.calls) == 3 and len(rep._modules) == 2


def test_what_is_compiled_runs_while_another_shape_is_compiled():
    compiling, go_on = threading.Event(), threading.Event()

    class Slow(Recorder):
        def __call__(self, model, **options):
            if options["shapes"]["x"] == (2, 3):
                compiling.set()
                assert go_on.wait(60)
            return super().__call__(model, **options)

    rep = onnx_backend.BurnishRep(model(("x", 1, ("n", 3))), Slow())
    rep.run([X[:1]])
    other = threading.Thread(target=rep.run, args=([X],))
    other.start()
    assert compiling.wait(60)
    rep.run([X[:1]])  # or this would not end
    go_on.set()
    other.join()
    assert len(rep._modules) == 2


def test_a_wrong_dtype_compiles_nothing():
    compile = Recorder()
    rep = onnx_backend.BurnishRep(model(("x", 1, ("n", 3))), compile)
    with pytest.raises(InputError, match="input 'x': expected float32, found float64"):
        rep.run([X.astype(np.float64)])
    rep.run([X.astype(">f4")])
    assert len(compile.calls) == 1 and compile.fed["x"].dtype == X.dtype
    halves = onnx_backend.BurnishRep(model(("x", TensorProto.BFLOAT16, ("n", 3))), compile)
    with pytest.raises(InputError, match="input 'x': expected bfloat16, found float32"):
        halves.run([X])
    assert len(compile.calls) == 1


def test_first_runs_of_several_threads():
    both = threading.Barrier(2)

    class Slow(Recorder):
        def __call__(self, model, **options):
            time.sleep(0.05)
            return super().__call__(model, **options)

    rep = onnx_backend.BurnishRep(model(("x", 1, ("n", 3)), ("s", I64, (2,))), Slow(wants=("s",)))
    failed = []

    def run():
        both.wait()
        try:
            rep.run([X, np.array([3, 2])])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(rep._modules) == 1


def test_inputs_that_decide_shapes_are_compiled_in_once_per_value():
    compile = Recorder(wants=("s", "x"))
    rep = onnx_backend.BurnishRep(STATIC, compile)
    for target in ([3, 2], [2, 3], [3, 2]):
        rep.run([X, np.array(target)])
    compiled = [c["values"] for c in compile.calls if c.get("values") and set(c["values"]) == {"s", "x"}]
    assert [v["s"].tolist() for v in compiled] == [[3, 2], [2, 3]]
    assert compile.fed == {}


def test_an_unanswerable_demand_is_raised():
    with pytest.raises(NeedsValueError):
        onnx_backend.BurnishRep(STATIC, lambda model, **o: (_ for _ in ()).throw(NeedsValueError("no", ())))


def test_open_sizes_wait_for_the_first_run():
    compile = Recorder()
    rep = onnx_backend.BurnishRep(model(("x", 1, ("N", 3))), compile)
    assert not compile.calls
    for rows in (2, 5, 2):
        rep.run([np.zeros((rows, 3), np.float32)])
    assert [c["shapes"] for c in compile.calls] == [{"x": (2, 3)}, {"x": (5, 3)}]


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([X], InputError, "'s' is missing"),
        ({"x": X}, InputError, "'s' is missing"),
        ([X, X, X], InputError, "3 inputs"),
        ([X, [1, 2]], UnsupportedError, "'s' is given as list"),
    ],
)
def test_wrong_inputs_are_typed_errors(inputs, error, message):
    with pytest.raises(error, match=message):
        onnx_backend.BurnishRep(STATIC, Recorder()).run(inputs)


def test_run_node_and_run_model():
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    (y,) = onnx_backend.run_node(node, [X, np.array([3, -1])])
    np.testing.assert_array_equal(y, X.reshape(3, 2))
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)
    a, b = onnx_backend.run_node(node, [X], outputs_info=[(np.float32, (2, 2)), (np.float32, (2, 1))])
    np.testing.assert_array_equal(a, X[:, :2])
    np.testing.assert_array_equal(b, X[:, 2:])
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ("N", 3))],
        [helper.make_tensor_value_info("y", 1, ("N", 3))],
    )
    opsets = [helper.make_opsetid("", 20)]
    (y,) = onnx_backend.run_model(helper.make_model(graph, opset_imports=opsets), X)
    np.testing.assert_array_equal(y, -X)


def test_devices_and_compatibility():
    assert onnx_backend.supports_device("CPU") and not onnx_backend.supports_device("CUDA:0")
    with pytest.raises(UnsupportedError, match="CUDA"):
        onnx_backend.prepare(STATIC, "CUDA")
    strings = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, (1,))],
        [helper.make_tensor_value_info("y", TensorProto.STRING, (1,))],
    )
    assert not onnx_backend.is_compatible(
        helper.make_model(strings, opset_imports=[helper.make_opsetid("", 20)])
    )
