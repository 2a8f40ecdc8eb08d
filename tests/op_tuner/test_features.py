"""Features of loop programs: values counted by hand, what they do not depend on, what they tell apart."""

import random
from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir import loops as L
from burnish.compiler.ir.loops import Alloc, Buffer, If, Prefetch, Program, Store, loop
from burnish.compiler.ir.scalar import Load, Var, const, lt
from burnish.compiler.ir.types import F32
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.reduction import Softmax
from burnish.compiler.target import host
from burnish.compiler.templates.registry import algorithms
from burnish.op_tuner.features import NAMES, evaluate
from burnish.op_tuner.nest_features import THRESHOLDS
from burnish.op_tuner.sketch import BUFFERS, sketch
from burnish.op_tuner.space import Space

from ..compiled.test_conv_algorithms import Case, items_of
from .tasks import double, op_task

I, J, K = 4, 8, 16
CONV = Conv(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)


def matmul(order="ijk", kinds=("serial", "serial", "serial"), names=("i", "j", "k"), tensors="CAB"):
    """C[i, j] += A[i, k] * B[k, j], loops in the order given, from the outside in."""
    i, j, k = (Var(name) for name in names)
    c, a, b = tensors
    value = Load(c, (i, j), F32) + Load(a, (i, k), F32) * Load(b, (k, j), F32)
    body: L.Stmt = Store(c, (i, j), value)
    for which, kind in reversed(list(zip(order, kinds))):
        n = "ijk".index(which)
        body = loop(names[n], (I, J, K)[n], body, kind=kind)
    params = (Buffer(a, F32, (I, K)), Buffer(b, F32, (K, J)), Buffer(c, F32, (I, J)))
    return Program("matmul", params, (body,))


def row(program, threads=1):
    return dict(zip(NAMES, evaluate([sketch(program, threads)])[0]))


def log(x):
    return pytest.approx(np.log2(1 + x), rel=1e-5)


def test_a_matrix_product_by_hand():
    f = row(matmul(kinds=("parallel", "serial", "vector")), threads=3)
    assert f["loop0.length"] == log(16) and f["loop1.length"] == log(8) and f["loop2.length"] == log(4)
    assert (f["loop0.vector"], f["loop0.serial"], f["loop1.serial"], f["loop2.parallel"]) == (1, 0, 1, 1)
    assert [f[f"loop{n}.top_down"] for n in range(3)] == [log(32), log(4), log(1)]
    assert [f[f"loop{n}.bottom_up"] for n in range(3)] == [log(16), log(128), log(512)]
    assert f["loop3.length"] == 0 and f["loop3.serial"] == 0
    # stored first: C, then the larger of A (4·16) and B (16·8)
    assert [f[f"buffer{b}.bytes"] for b in range(4)] == [log(4 * 32), log(4 * 128), log(4 * 64), 0]
    assert [f[f"buffer{b}.reuse"] for b in range(3)] == [log(16), log(4), log(8)]
    assert [f[f"buffer{b}.inner_stride"] for b in range(3)] == [log(0), log(4 * J), log(4)]
    assert f["tasks"] == log(4) and f["imbalance"] == log(6 / 4) and f["steps"] == log(1)
    assert f["work"] == log(I * J * 3)  # an addition, a product and a store a vector


def test_relations_by_hand():
    """B: k alone touches 16 elements, 64 bytes; j, k and i, j, k all 128, 512 bytes, once and four times."""
    f = row(matmul())
    reuse = [f[f"reuse.1<2^{t}"] for t in THRESHOLDS]
    assert reuse == [log(0 if 2**t <= 64 else 1 if 2**t <= 512 else 4) for t in THRESHOLDS]
    outside = [f[f"top_down.1<2^{t}"] for t in THRESHOLDS]
    assert outside == [log(0 if 2**t <= 64 else 32) for t in THRESHOLDS]
    # all three: k alone 4 + 64 + 64 bytes, j and k 32 + 512 + 64, all 128 + 512 + 256
    inside = [f[f"reuse.all<2^{t}"] for t in THRESHOLDS]
    assert inside == [log(0 if 2**t <= 132 else 16 if 2**t <= 608 else 512) for t in THRESHOLDS]


def test_the_other_nests():
    """A product between two copies, the larger last: heaviest first, however they stand."""
    i, j = Var("i"), Var("j")
    product = matmul(kinds=("parallel", "serial", "vector")).body
    small = loop("i", I, Store("D", (i,), Load("C", (i, i * 0), F32)))
    large = loop("i", I, loop("j", J, Store("E", (i, j), Load("C", (i, j), F32)), kind="vector"))
    params = (*matmul().params, Buffer("D", F32, (I,)), Buffer("E", F32, (I, 16 * J)))
    found = [row(Program("p", params, body)) for body in ((small, *product, large), (large, *product, small))]
    for f in found:
        assert f["heaviest"] == log(I * J * 3) and f["loop0.length"] == log(K)
        assert f["nest1.share"] == log(I) and f["nest2.share"] == log(I)
        assert f["work"] == log(I * J * 3 + 2 * I) and f["steps"] == log(3)
    first, second = ("nest1", "nest2") if found[0]["nest1.loop0.vector"] == 0 else ("nest2", "nest1")
    f = found[0]
    assert f[f"{first}.loop0.length"] == log(I) and f[f"{first}.loop1.length"] == 0
    assert f[f"{first}.buffer0.bytes"] == log(4 * I) and f[f"{first}.buffer1.inner_stride"] == log(4 * J)
    assert f[f"{second}.loop0.length"] == log(J) and f[f"{second}.loop1.length"] == log(I)
    assert f[f"{second}.buffer0.vector_stride"] == log(4) and f[f"{second}.buffer1.bytes"] == log(4 * I * J)
    assert f[f"{second}.reuse.all<2^30"] == log(I * J) and f[f"{second}.top_down.all<2^6"] == 0


def test_windows_overlap():
    """x[2·i + k] over 5 places and 3 taps: 11 elements, not 15."""
    i, k = Var("i"), Var("k")
    body = Store("y", (i,), Load("y", (i,), F32) + Load("x", (i * 2 + k,), F32))
    program = Program(
        "sum", (Buffer("x", F32, (20,)), Buffer("y", F32, (5,))), (loop("i", 5, loop("k", 3, body)),)
    )
    f = row(program)
    assert f["buffer1.bytes"] == log(44) and f["buffer1.reuse"] == log(15 / 11)


def test_blocks_of_an_index():
    """x[i // 4, i % 4] over 8: two rows of four elements."""
    i = Var("i")
    index = (i // 4, i % 4)
    program = Program(
        "copy",
        (Buffer("x", F32, (100, 4)), Buffer("y", F32, (8,))),
        (loop("i", 8, Store("y", (i,), Load("x", index, F32))),),
    )
    assert row(program)["buffer1.bytes"] == log(4 * 8)


def test_names_do_not_matter():
    plain, renamed = matmul(), matmul(names=("a", "b", "c"), tensors="zxy")
    np.testing.assert_array_equal(evaluate([sketch(plain, 2)]), evaluate([sketch(renamed, 2)]))


def test_loops_of_one_iteration_do_not_matter():
    plain = matmul()
    wrapped = Program(plain.name, plain.params, (loop("one", 1, *plain.body, kind="parallel"),))
    np.testing.assert_array_equal(evaluate([sketch(plain, 2)]), evaluate([sketch(wrapped, 2)]))


def test_order_and_kinds_matter():
    found = [matmul(), matmul("jik"), matmul("kij"), matmul(kinds=("serial", "serial", "vector"))]
    assert len(np.unique(evaluate([sketch(p, 2) for p in found]), axis=0)) == len(found)


def test_numbers_of_the_whole_program():
    i, j = Var("i"), Var("j")
    acc = Buffer("acc", F32, (2, 8), "register")
    inner = Store("acc", (i, j), Load("acc", (i, j), F32) + Load("x", (j,), F32))
    tile = loop("i", 2, loop("j", 8, inner, kind="vector"), kind="unroll")
    ahead = Prefetch("x", (i * 0 + 24,))
    last = If(lt(i, 1), (Store("y", (i,), const(0.0, F32)),))
    params = (Buffer("x", F32, (64,)), Buffer("y", F32, (2,)))
    rows_ = loop("r", 5, Alloc(acc, (tile, loop("i", 2, last))), ahead, kind="parallel")
    f = row(Program("p", params, (rows_, loop("r", 3, Store("y", (i * 0,), const(1.0, F32))))), threads=2)
    assert f["registers"] == log(64) and f["body"] == log(2 * 2) and f["tasks"] == log(5)
    assert f["prefetches"] == log(5) and f["nearest_prefetch"] == log(24 * 4)
    assert f["guards"] == log(10) and f["statements"] == log(3) and f["steps"] == log(2)
    assert f["params"] == log(66 * 4)


def test_a_program_without_statements():
    assert not evaluate([sketch(Program("nothing", (), ()), 1)]).any()
    assert evaluate([]).shape == (0, len(NAMES))


@pytest.mark.parametrize(
    "task",
    [
        op_task(CONV, "f32[1,16,9,9]", "f32[16,16,3,3]"),
        op_task(MatMul(), "f32[17,33]", "f32[33,40]"),
        op_task(Softmax(axis=1), "f32[7,33]"),
        double(),
    ],
    ids=lambda t: f"{t.name}-{t.algorithm}",
)
def test_templates(task):
    """Every point of every template has finite features; different programs differ; many at once are as one
    by one, and the same again."""
    rng = random.Random(0)
    for algorithm in algorithms(task):
        own = replace(task, algorithm=algorithm)
        space = Space(own)
        points = list(dict.fromkeys([space.default(), *(space.draw(rng) for _ in range(8))]))
        programs = [scheduled(own, space.config(p)) for p in points]
        sketches = [sketch(p, 2) for p in programs]
        found = evaluate(sketches)
        assert found.shape == (len(points), len(NAMES)) and np.isfinite(found).all()
        assert (found[:, NAMES.index("work")] > 0).all() and found.dtype == np.float32
        again = np.concatenate([evaluate([sketch(p, 2)]) for p in programs])
        np.testing.assert_array_equal(found, again)
        texts = {L.print_program(p) for p in programs}
        assert len(np.unique(found, axis=0)) >= 0.7 * len(texts)


def test_nests_of_one_shape_in_any_order():
    """Phases of a polyphase convolution, computed side by side, are as those of each program alone."""
    case = Case(16, 32, (14, 14), strides=(2, 2), pads=(1, 1, 1, 1))
    task = items_of(case, host(), "polyphase2")[0].task
    space, rng = Space(task), random.Random(0)
    sketches = [sketch(scheduled(task, space.config(space.draw(rng))), 1) for _ in range(12)]
    alone = np.concatenate([evaluate([sk]) for sk in sketches])
    for _ in range(20):
        some = rng.sample(range(len(sketches)), rng.randint(2, 8))
        np.testing.assert_array_equal(evaluate([sketches[n] for n in some]), alone[some])


def test_buffers_are_bounded():
    """More operands than there is room for: the smallest are left out."""
    i = Var("i")
    names = [f"x{n}" for n in range(BUFFERS + 3)]
    value = sum((Load(n, (i,), F32) for n in names[1:]), Load(names[0], (i,), F32))
    params = (*(Buffer(n, F32, (10 + k,)) for k, n in enumerate(names)), Buffer("y", F32, (9,)))
    f = row(Program("add", params, (loop("i", 9, Store("y", (i,), value)),)))
    assert f[f"buffer{BUFFERS - 1}.bytes"] == log(36)
