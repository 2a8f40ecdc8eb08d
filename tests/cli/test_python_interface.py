"""burnish.compile, load and Module: what they take, and what they say to the rest."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from functools import partial

import burnish
import numpy as np
import onnx
import pytest
from burnish.commands.compile import facts
from burnish.commands.peers.burnish_peer import algorithms
from burnish.compiler.target import host_threads
from burnish.op_tuner.records import RecordedConfig

from ..compiled.forked import run_forked

X = np.random.default_rng(0).standard_normal((6, 4), np.float32)


@pytest.fixture(scope="module")
def module(two_layers) -> burnish.Module:
    return burnish.compile(two_layers, dims={"batch": 6}, threads=2)


@pytest.fixture(scope="module")
def expected(module) -> np.ndarray:
    return module.run({"x": X})["y"]


@pytest.mark.parametrize("threads", [1, 2, 3, 64, 0, None, np.int32(2)])
def test_any_number_of_threads(two_layers, module, expected, threads):
    np.testing.assert_array_equal(module.run({"x": X}, threads=threads)["y"], expected)
    again = burnish.compile(two_layers, dims={"batch": np.int64(6)}, threads=threads)
    np.testing.assert_allclose(again.run({"x": X})["y"], expected, rtol=1e-6)
    assert again.threads == (int(threads or 0) or host_threads())


def test_how_many_configs_are_recorded(two_layers, module):
    """None of these tasks is in the records that ship; the table of a comparison says how many are."""
    assert module.recorded == 0 and "records" not in algorithms(module)
    recorded = partial(
        burnish.compile, two_layers, dims={"batch": 6}, pick_config=lambda t: RecordedConfig({})
    )
    different = len({step.kernel for step in module.plan.steps})
    assert 0 < recorded().recorded <= different
    assert f"({recorded().recorded} configs from records)" in algorithms(recorded())
    assert not recorded().origins


def test_configs_of_another_machine_are_reported(two_layers, tmp_path):
    options = {"dims": {"batch": 6}, "pick_config": lambda t: RecordedConfig({}, "A CPU, znver9, 8 cores")}
    module = burnish.compile(two_layers, **options)
    assert module.origins == {"A CPU, znver9, 8 cores": module.recorded}
    module.save(tmp_path / "m.so")
    said = f"{module.recorded} configs from records ({module.recorded} of A CPU, znver9, 8 cores)"
    assert said in facts(module, tmp_path / "m.so")


@pytest.mark.parametrize("threads", [-1, 1025, 10**12, 2.0, "2", [1]])
def test_no_number_of_threads(two_layers, module, threads):
    for call in (
        lambda: burnish.compile(two_layers, dims={"batch": 6}, threads=threads),
        lambda: module.run({"x": X}, threads=threads),
        lambda: module.context(threads),
    ):
        with pytest.raises(burnish.InputError, match="expected a number from 1 to 1024, or 0 for all cores"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        np.asfortranarray,
        lambda x: x[::-1, ::-1][::-1, ::-1],
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: np.broadcast_to(x, x.shape),
    ],
    ids=["columns first", "negative strides", "strides", "unaligned", "read-only"],
)
def test_any_memory(module, expected, make):
    np.testing.assert_array_equal(module.run({"x": make(X)})["y"], expected)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "missing x"),
        ({"x": X, "z": X}, "unknown z"),
        ({0: X}, "missing x and unknown 0"),
        ([X], "expected a dict of arrays by name, .* found list"),
        (None, "found NoneType"),
        ({"x": None}, "expected x: f32.6,4., found None"),
        ({"x": X.tolist()}, "found list"),
        ({"x": X.astype(np.float64)}, "found float64"),
        ({"x": X.astype(">f4")}, "found >f4"),
        ({"x": X.T}, r"found float32\[4,6\]"),
        ({"x": X[:0]}, r"found float32\[0,4\]"),
    ],
)
def test_wrong_inputs(module, feeds, message):
    with pytest.raises(burnish.InputError, match=message):
        module.run(feeds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"batch": 2.0}}, "the size 'batch' is 2.0, expected a whole number"),
        ({"dims": {"batch": "2"}}, "the size 'batch' is '2'"),
        ({"dims": {"batch": -1}}, "expected 0 or more"),
        ({"dims": [("batch", 2)]}, "sizes are given by name in a dict, not as list"),
        ({"shapes": {"x": (2.5, 4)}}, "2.5, expected a whole number"),
        ({"shapes": {"x": 4}}, "expected a tuple of whole numbers"),
        ({"shapes": {"x": None}}, "expected a tuple of whole numbers"),
        ({"shapes": (2, 4)}, "shapes are given by name"),
        ({"values": [X]}, "values are given by name"),
        ({"target": None}, "unknown target None"),
        ({"memory_limit": "64MB"}, "memory limit '64MB': expected a number of bytes"),
        ({"accuracy": "1e-6"}, "accuracy '1e-6': expected an error"),
        ({"records": 5}, "expected the path of a file, found int"),
    ],
)
def test_wrong_options(two_layers, options, message):
    with pytest.raises(burnish.InputError, match=message):
        burnish.compile(two_layers, **options)


def test_the_model_is_left_as_it_was(two_layers):
    model = onnx.load(two_layers)
    before = model.SerializeToString(deterministic=True)
    burnish.compile(model, dims={"batch": 1})
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("path", [None, 5, "m\0.so"])
def test_paths_that_are_none(module, path):
    for call in (module.save, burnish.load):
        with pytest.raises(burnish.InputError, match=r"expected the path of a file|null character"):
            call(path)


def test_a_module_says_what_it_is_and_cannot_be_copied(module):
    assert repr(module) == "<burnish.Module two_layers: x: f32[6,4] -> y: f32[6,3]>"
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(burnish.InputError, match="save it to a file"):
            call(module)


def test_memory_outlives_its_owners(module, expected, tmp_path):
    module.save(tmp_path / "m.so")
    loaded = burnish.load(tmp_path / "m.so", threads=2)
    (tmp_path / "m.so").unlink()
    context = loaded.context()
    context.bind_input("x", X)
    del loaded
    gc.collect()
    context.run()
    y = context.output("y")
    del context
    gc.collect()
    np.testing.assert_array_equal(y, expected)


def test_many_threads_of_python_share_modules(module, expected, tmp_path):
    module.save(tmp_path / "m.so")
    modules = [module, burnish.load(tmp_path / "m.so")]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            y = modules[number % 2].run({"x": X}, threads=1 + number % 3)["y"]
            if not np.array_equal(y, expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_runs_on_without_the_threads(module, expected):
    context = module.context(2)
    context.bind_input("x", X)
    context.run()

    def check(item: None) -> str | None:
        context.run()
        same = np.array_equal(context.output("y"), expected)
        return None if same and np.array_equal(module.run({"x": X}, threads=3)["y"], expected) else "wrong"

    assert run_forked([None], check) == [None]


def test_sessions_have_what_applications_ask_for(two_layers, tmp_path):
    burnish.compile(two_layers, dims={"batch": len(X)}).save(tmp_path / "m.so")
    feeds = (X, X.astype(">f4"), X.tolist(), np.ma.masked_array(X))
    for path in (two_layers, str(two_layers), tmp_path / "m.so"):
        session = burnish.InferenceSession(path, providers=[("CPUExecutionProvider", {})], enable_fallback=0)
        assert session.get_provider_options() == {"CPUExecutionProvider": {}}
        assert session.get_overridable_initializers() == []
        assert session.get_session_options().intra_op_num_threads == 0
        results = [session.run(None, {"x": feed})[0] for feed in feeds]
        assert all(np.array_equal(result, results[0]) for result in results)
    for providers in (5, "CPUExecutionProvider", [5], [()]):
        with pytest.raises(burnish.InputError, match="provider"):
            burnish.InferenceSession(two_layers, providers=providers)


def test_files_that_cannot_be_are_input_errors(two_layers, tmp_path):
    module, name = burnish.compile(two_layers, dims={"batch": 2}), "x" * 300
    for suffix in (".so", ".a"):
        with pytest.raises(burnish.InputError, match="name too long"):
            module.save(tmp_path / (name + suffix))
    with pytest.raises(burnish.InputError, match="there is no file"):
        burnish.compile(two_layers, dims={"batch": 2}, records=tmp_path / f"{name}.jsonl")
    with pytest.raises(burnish.InputError, match="given by name in a dict"):
        burnish.compile(two_layers, values=np.ones(2))


def test_sessions_say_what_they_take(two_layers):
    session = burnish.InferenceSession(two_layers)
    for feed in ([X], None, X):
        with pytest.raises(burnish.InputError, match="input_feed: expected a dict of arrays by name, found "):
            session.run(None, feed)
    for names in ("y", 5, [1], [["y"]]):
        with pytest.raises(burnish.InputError, match="output_names: expected a list of names or None"):
            session.run(names, {"x": X})
