"""Prefetches of the direct template reach what the tiles read later, and only that."""

from __future__ import annotations

import pytest
from burnish.compiler.ir import loops as L
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.types import F32, Layout, TensorType
from burnish.compiler.kernel_task import FixedConfig, KernelTask
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.fused import expression
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target
from burnish.compiler.templates import direct
from burnish.compiler.templates.prefetch import LINE
from burnish.compiler.templates.products import packed_layout

BLOCK = 8
IN, OUT, SIDE = 32, 48, 5


def pointwise() -> KernelTask:
    data, weights = TensorType(F32, (1, IN, SIDE, SIDE)), TensorType(F32, (OUT, IN, 1, 1))
    expr = expression(Conv((1, 1), (0, 0, 0, 0), (1, 1)), (data, weights))
    packed = Layout((0, 1, 2, 3), ((1, BLOCK), (0, BLOCK)))
    blocked = Layout.channel_blocked(4, BLOCK)
    (x, _), (w, _) = expr.params
    layouts = ((x, blocked), (w, packed), (expr.outputs[0], blocked))
    return KernelTask("kernel", expr, layouts, frozenset({w}), "direct", get_target("x86-64-v3"), 1)


def product(columns: int = OUT) -> KernelTask:
    expr = expression(MatMul(), (TensorType(F32, (19, IN)), TensorType(F32, (IN, columns))))
    (_, _), (w, _) = expr.params
    layouts = ((w, packed_layout(BLOCK, False)),)
    return KernelTask("kernel", expr, layouts, frozenset({w}), "direct", get_target("x86-64-v3"), 1)


def prefetched_lines(task: KernelTask, answers: dict[str, object], tensor: str) -> dict[int, set[int]]:
    """Lines of the tensor that are prefetched while the tiles of each group of columns run."""
    program = direct.schedule(task, direct.params(task, FixedConfig(answers)))
    strides = program.buffers()[tensor].strides
    found: dict[int, set[int]] = {}

    def visit(body: L.Body, values: dict[str, int]) -> None:
        for st in body:
            if isinstance(st, L.For) and st.kind != "vector":
                assert st.extent is not None
                for n in range(st.extent):
                    visit(st.body, {**values, st.var: n})
            elif isinstance(st, L.Alloc):
                visit(st.body, values)
            elif isinstance(st, L.Prefetch) and st.buffer == tensor:
                at = [s.substitute(e, {v: s.const(n) for v, n in values.items()}) for e in st.index]
                assert all(isinstance(e, s.Const) for e in at)
                place = sum(int(e.value) * n for e, n in zip(at, strides))  # type: ignore[attr-defined]
                group = next(n for v, n in values.items() if v.endswith("_o"))
                found.setdefault(group, set()).add(place // LINE)

    visit(program.body, {})
    return found


@pytest.mark.parametrize("kernel, axis", [(pointwise, "c"), (product, "n")])
def test_tiles_share_the_next_columns_weights(kernel, axis):
    task = kernel()
    weights = next(iter(task.constants))
    tile = dict(direct.params(task, FixedConfig({})).tile)
    columns = next(size for name, size in tile.items() if name.startswith(axis))
    found = prefetched_lines(task, {"panel": True, "prefetch": 0, "ahead": 0}, weights)
    panel = columns * BLOCK * IN // LINE
    for group, lines in found.items():
        assert lines == set(range((group + 1) * panel, (group + 2) * panel))
    assert len(found) == -(-OUT // (columns * BLOCK))


def test_of_plain_weights_every_channel_of_the_tile_is_prefetched():
    expr = expression(
        Conv((5, 4), (0, 0, 0, 0), (1, 1)), (TensorType(F32, (2, 16, 9, 9)), TensorType(F32, (24, 16, 2, 2)))
    )
    (_, _), (w, _) = expr.params
    task = KernelTask("kernel", expr, (), frozenset({w}), "direct", get_target("x86-64-v3"), 1)
    p = direct.params(task, FixedConfig({"prefetch": 64}))
    program = direct.schedule(task, p)
    verify(program)
    found = [st for st in L.walk(program.body) if isinstance(st, L.Prefetch) and st.buffer == w]
    assert len(found) == len({st.index for st in found}) > 1


@pytest.mark.parametrize("share, once", [(0.4, False), (0.6, True)])
def test_weights_as_large_as_the_last_cache_do_not_stay_in_it(share, once):
    cache = get_target("x86-64-v3").l3
    task = product(int(share * cache / 4 / IN) // BLOCK * BLOCK)
    found = [
        st.once
        for answers in ({"panel": True, "prefetch": 0}, {"panel": False, "prefetch": 32})
        for st in L.walk(direct.schedule(task, direct.params(task, FixedConfig(answers))).body)
        if isinstance(st, L.Prefetch)
    ]
    assert found and set(found) == {once}


def default_prefetches(channels: int, out: int) -> tuple[int, bool]:
    """Of a convolution of 1×1 on 7², by x86-64-v4, whose second-level cache is 1 MB."""
    data, weights = TensorType(F32, (1, channels, 7, 7)), TensorType(F32, (out, channels, 1, 1))
    expr = expression(Conv((1, 1), (0, 0, 0, 0), (1, 1)), (data, weights))
    packed, blocked = Layout((0, 1, 2, 3), ((1, 16), (0, 16))), Layout.channel_blocked(4, 16)
    (x, _), (w, _) = expr.params
    layouts = ((x, blocked), (w, packed), (expr.outputs[0], blocked))
    task = KernelTask("kernel", expr, layouts, frozenset({w}), "direct", get_target("x86-64-v4"), 1)
    found = direct.params(task, FixedConfig({}))
    return found.prefetch, found.panel


def test_weights_are_prefetched_from_an_eighth_of_the_second_level_cache_on():
    assert default_prefetches(1024, 512) == (0, True)
    assert default_prefetches(272, 128) == (0, True)  # 136 KB
    assert default_prefetches(256, 128) == (0, False)  # 128 KB


def test_the_only_panel_is_prefetched_line_by_line():
    assert default_prefetches(832, 32) == (64, False)  # 104 KB
    assert default_prefetches(512, 32) == (0, False)  # 64 KB
