"""Products by tensor cores: what loops mean and kernels give, rounding, and where plans may choose them.

Operands are small integers, which every precision holds exactly: so are the sums, in whatever order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import burnish
import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.commands.compare import compare
from burnish.compiler.build_kernel import generate
from burnish.compiler.ir import loops_interpreter, text
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import (
    Buffer,
    If,
    Intrinsic,
    Program,
    Store,
    loop,
    print_program,
    walk,
)
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.scalar import Load, Var
from burnish.compiler.ir.types import F32, Layout
from burnish.compiler.kernel_task import Config, DefaultConfig, KernelTask
from burnish.compiler.lower.lower import finished, scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import TARGETS, Target
from burnish.compiler.templates.gpu import tensor_cores
from burnish.compiler.templates.gpu.implicit import LAST
from burnish.compiler.templates.gpu.tensor_cores import PRECISIONS, params, tf32
from burnish.errors import InternalError
from burnish.graph_passes.alternatives import alternatives, fused
from burnish.graph_passes.make_tasks import task_of
from burnish.graph_passes.predict_gpu import PredictedGpuCost
from onnx import TensorProto, helper

from ..ops.case import Case, build_graph
from .cases import Drawn
from .device import kernels
from .nvcc import compiled

CUDA = TARGETS["cuda-sm80"]
_GPU = TARGETS["opencl"].gpu
assert _GPU is not None
EMULATED = replace(TARGETS["opencl"], gpu=replace(_GPU, warp=32, tensor=8.0))
"""Whose language has no such instruction: their meaning is printed."""
NAMES = [f"tensor_{name}" for name in PRECISIONS]
SMALL = [
    Case(MatMul(), ("f32[9,19]", "f32[19,11]")),
    Case(Conv((2, 1), (0, 1, 1, 0), (1, 2), 1), ("f32[1,2,5,6]", "f32[8,2,3,2]")),
]
"""For the interpreter, which takes a microsecond an operation."""
CASES = [
    Case(MatMul(), ("f32[37,129]", "f32[129,67]")),
    Case(MatMul(trans_a=True, trans_b=True), ("f32[300,16]", "f32[33,300]")),
    Case(MatMul(), ("f32[2,3,17,33]", "f32[3,33,19]")),
    Case(MatMul(), ("f32[8,700]", "f32[700,9]")),
    Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), ("f32[1,17,9,11]", "f32[13,17,3,3]", "f32[13]")),
    Case(Conv((2, 2), (0, 0, 0, 0), (1, 1), 1), ("f32[2,32,9,9]", "f32[24,32,1,1]")),
]


def task(case: Case, algorithm: str, target: Target = CUDA, name: str = "k") -> KernelTask:
    graph = build_graph(case)
    node = graph.nodes[0]
    op = replace(fused(graph, node), algorithm=algorithm)
    found = task_of(graph, replace(node, op=op), target, 1)
    assert found.algorithm == algorithm
    return replace(found, name=name)


def integers(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(-8, 9, a.shape).astype(np.float32) for a in case.arrays() if a is not None]


def tried(*seeds: int) -> Iterator[Config]:
    """The default config and drawn ones."""
    yield DefaultConfig()
    yield from (Drawn(random.Random(seed)) for seed in seeds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op.name)
def test_the_loops_mean_the_product(case, name):
    arrays = integers(case)
    (expected,) = case.op.reference(*arrays)
    for config in tried(0) if name == NAMES[0] else [Drawn(random.Random(0))]:
        program = scheduled(task(case, name), config)
        assert any(isinstance(st, Intrinsic) for st in walk(program.body))
        verify(program)
        assert text.parse_program(print_program(program)) == program
        for order in loops_interpreter.ORDERS:
            out = np.zeros(program.params[-1].shape, np.float32)
            shaped = [a.reshape(b.shape) for a, b in zip(arrays, program.params)]
            loops_interpreter.interpret(program, [*shaped, out], order=order)
            np.testing.assert_array_equal(out.reshape(expected.shape), expected)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_compute_what_they_mean(device, name):
    target = EMULATED if device.name == "opencl" else device
    programs = {
        (n, k): scheduled(task(case, name, target, f"k{n}_{k}"), config)
        for n, case in enumerate(CASES)
        for k, config in enumerate(tried(n, n + 1))
    }
    code = kernels(programs.values(), target)
    for (n, _), program in programs.items():
        arrays = integers(CASES[n])
        (expected,) = CASES[n].op.reference(*arrays)
        (found,) = code.run(program.name, arrays)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=program.name)


@pytest.mark.parametrize("target", ["cuda-sm80", "cuda-sm90"])
def test_nvcc_takes_the_instructions_and_spills_nothing(nvcc, target):
    large = Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), ("f32[1,256,14,14]", "f32[256,256,3,3]"))
    sources = []
    for n, name in enumerate(NAMES):
        for k, case in enumerate((large, CASES[n])):
            program = scheduled(task(case, name, TARGETS[target], f"k{n}_{k}"), DefaultConfig())
            sources.append(generate(finished(program, TARGETS[target]), TARGETS[target]).ir)
            assert f"mma_{name.removeprefix('tensor_')}(" in sources[-1]
    kernels = compiled(sources, TARGETS[target])
    assert len(kernels) >= len(sources)
    assert all(k.spilt == k.stack == 0 for k in kernels), kernels


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (64, 3136, 576), (512, 49, 4608), (8, 8, 100000)])
@pytest.mark.parametrize("name", NAMES)
def test_the_default_stays_within_the_targets_limits(size, name):
    m, n, k = size
    for target in (CUDA, TARGETS["cuda-sm90"]):
        p = params(task(Case(MatMul(), (f"f32[{m},{k}]", f"f32[{k},{n}]")), name, target), DefaultConfig())
        rows, columns = p.tile.block
        assert target.gpu is not None
        assert (
            4 * (rows + columns) * p.depth // PRECISIONS[name.removeprefix("tensor_")].packed
            < target.gpu.shared
        )
        assert -(-m // rows) * -(-n // columns) * p.parts >= min(target.gpu.units, m * n * k // 2**16) / 4


# --- rounding -------------------------------------------------------------------------------------------


def rounded(x: np.ndarray) -> np.ndarray:
    return evaluate(tf32(Load("x", (Var("i"),), F32)), {"i": np.arange(x.size)}, {"x": x})


def test_tf32_rounds_to_ten_bits():
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.uniform(-1, 1, 10_000), rng.integers(-120, 120, 10_000)).astype(np.float32)
    ties = np.float32([1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11])
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0])
    x = np.concatenate([x, ties, special])
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(x.astype(np.float64))
        unit = np.ldexp(1.0, np.maximum(exponent, -125) - 11)  # subnormal numbers have the least exponent
        expected = np.copysign(np.floor(np.abs(x) / unit + 0.5) * unit, x)
    expected = np.where(np.isfinite(x), expected, x).astype(np.float32)
    payload = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    for how in (rounded, tensor_cores.rounded):
        np.testing.assert_array_equal(how(x), expected)
        assert np.isnan(how(payload)).all()


# --- plans ----------------------------------------------------------------------------------------------


def offered(case: Case, precision: str, kind: str = "gpu") -> set[str]:
    graph = build_graph(case)
    constants = dict(zip(graph.inputs[1:], integers(case)[1:]))
    graph = replace(graph, inputs=graph.inputs[:1], constants=constants)
    node = replace(graph.nodes[0], op=fused(graph, graph.nodes[0]))
    found = {d.algorithm for d in alternatives(graph, node, 4, 5e-6, kind, precision)}
    return {name for name in found if name.startswith("tensor_")}


def test_only_plans_of_that_precision_may_choose_it():
    for case in CASES:
        assert offered(case, "f32") == offered(case, "tf32", "cpu") == set()
        assert all(offered(case, p) == {f"tensor_{p}"} for p in PRECISIONS)
    depthwise = Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 32), ("f32[1,32,9,9]", "f32[32,1,3,3]"))
    assert offered(depthwise, "tf32") == offered(Case(MatMul(), ("f32[1,64]", "f32[64,64]")), "tf32") == set()


def network() -> onnx.ModelProto:
    """Two convolutions and a product, of integers that stay exact."""
    rng = np.random.default_rng(0)
    shapes = {"w": (32, 8, 3, 3), "v": (16, 32, 1, 1), "u": (10, 16 * 36)}
    weights = [
        helper.make_tensor(n, TensorProto.FLOAT, d, rng.integers(-1, 2, d).ravel().astype(np.float32))
        for n, d in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], name="second"),
        helper.make_node("Clip", ["c", "low", "high"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "u"], ["y"], name="third", transB=1),
    ]
    limits = [helper.make_tensor(n, TensorProto.FLOAT, (), [v]) for n, v in (("low", 0.0), ("high", 6.0))]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("x", (8, 8, 6, 6)), ("y", (8, 10)))
    ]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], [*weights, *limits])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def prefer(algorithm: str, monkeypatch: pytest.MonkeyPatch, reads: Layout | None = None) -> None:
    """Plans take it wherever they may, on that layout."""
    cost = PredictedGpuCost.node

    def node(self, graph, node, decision):
        preferred = decision.algorithm == algorithm and decision.reads == reads
        return cost(self, graph, node, decision) * (1.0 if preferred else 1e6)

    monkeypatch.setattr(PredictedGpuCost, "node", node)


def test_convolutions_by_tiles_on_weights_of_their_own(device, monkeypatch):
    prefer("implicit_gemm", monkeypatch)
    module = pipeline.compile(model := network(), target=device.name, cache=False)
    assert module.plan is not None
    assert sum("implicit_gemm" in kernel for kernel in module.plan.kernels) >= 2  # more where sums are split
    x = np.random.default_rng(2).integers(-2, 3, (8, 8, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(module.run({"x": x})["y"], burnish.compile(model).run({"x": x})["y"])


@pytest.mark.parametrize("reads", [None, LAST])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_module_on_the_fake_driver(driver, precision, reads, monkeypatch):
    """Where costs force it on the plan. The driver runs warps as they run, fragment by fragment."""
    prefer(f"tensor_{precision}", monkeypatch, reads)
    model = network()
    module = pipeline.compile(model, target="cuda-sm80", precision=precision, cache=False)
    assert module.plan is not None
    assert sum(f"tensor_{precision}" in kernel for kernel in module.plan.kernels) >= 3
    x = np.random.default_rng(2).integers(-2, 3, (8, 8, 6, 6)).astype(np.float32)
    exact = burnish.compile(model)
    np.testing.assert_array_equal(module.run({"x": x})["y"], exact.run({"x": x})["y"])
    x = np.random.default_rng(3).standard_normal(x.shape).astype(np.float32)  # rounded, as far as allowed
    check = compare("y", "", module.run({"x": x})["y"], exact.run({"x": x})["y"], precision)
    assert check.ok and 1e-5 < check.error < 2 * PRECISIONS[precision].error


@pytest.mark.parametrize("reads", [None, LAST])
def test_weights_of_tf32_are_rounded_when_compiling(driver, reads, monkeypatch):
    """To the nearest: products do not read the last 13 bits. What reads the original finds it."""
    prefer("tensor_tf32", monkeypatch, reads)
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(d).astype(np.float32) for d in ((24, 16, 1, 1), (2, 16, 6, 6)))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="product"),
        helper.make_node("Mul", ["w", "scale"], ["v"], name="original"),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("x", x.shape), ("scale", (1,)), ("y", (2, 24, 6, 6)), ("v", w.shape))
    ]
    constant = helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.ravel())
    graph = helper.make_graph(nodes, "network", ends[:2], ends[2:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    module = pipeline.compile(model, target="cuda-sm80", precision="tf32", cache=False)
    assert module.plan is not None and any("tensor_tf32" in k for k in module.plan.kernels)
    found = module.run({"x": x, "scale": np.ones(1, np.float32)})
    np.testing.assert_array_equal(found["v"], w)
    image, kernel = (rounded(a.ravel()).astype(np.float64) for a in (x, w))
    exact = np.einsum("ncp,oc->nop", image.reshape(2, 16, 36), kernel.reshape(24, 16))
    np.testing.assert_allclose(
        found["y"].reshape(exact.shape), exact, rtol=0, atol=4e-6 * np.abs(exact).max()
    )


@pytest.mark.parametrize("fragments", [(1, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fragments_of_factors_whose_terms_lie_side_by_side(driver, precision, fragments):
    """ldmatrix gives four parts of them at once: all four of a left one, two right ones."""
    x, w = (np.random.default_rng(n).integers(-3, 4, d) for n, d in enumerate([(40, 72), (50, 72)]))
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", x.shape), ("y", (40, 50)))
    ]
    weights = helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.ravel())
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [weights])
    wanted = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    class Config(DefaultConfig):
        def choose(self, knob, options, default):
            return super().choose(knob, options, ((1, 2), fragments) if knob == "tile" else default)

    module = pipeline.compile(
        wanted, target="cuda-sm80", precision=precision, cache=False, pick_config=lambda task: Config()
    )
    assert module.plan is not None and any(f"tensor_{precision}" in k for k in module.plan.kernels)
    np.testing.assert_array_equal(module.run({"x": x.astype(np.float32)})["y"], x @ w.T)


# --- intrinsics in general ------------------------------------------------------------------------------


def test_an_intrinsic_that_not_all_threads_reach_is_refused():
    x, y = Buffer("x", F32, (64,)), Buffer("y", F32, (64,))
    value = Load("x", (Var("t"),), F32)
    move = Intrinsic("mma_tf32", (value,), (Store("y", (Var("t"),), value),))

    def around(*body) -> Program:
        threads = loop("t", 64, *body, kind="thread.x")
        return Program("p", (x, y), (loop("b", 1, threads, kind="block.x"),))

    verify(around(move))
    verify(around(If(s.lt(s.const(0), s.const(1)), (move,))))
    for name in ("mma_tf32", "copy_async", "unheard_of"):
        named = replace(move, name=name)
        for body in (If(s.lt(Var("t"), 32), (named,)), loop("i", Var("t"), named)):
            if name == "copy_async":
                verify(around(body))
                continue
            with pytest.raises(InternalError, match=f"{name}.? where not all threads|unknown intrinsic"):
                verify(around(body))
