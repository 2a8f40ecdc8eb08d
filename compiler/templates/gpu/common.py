"""What GPU templates share: how the iterations of some loops are dealt to blocks of threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...ir import scalar as s
from ...ir.affine import linear
from ...ir.loops import Body, For, If, Stmt
from ...ir.scalar import Expr, Var
from ...kernel_task import Config
from ...target import Target

BLOCK, THREAD = "block_x", "thread_x"


def threads_of_block(cfg: Config, target: Target, items: int) -> int:
    """The question how many threads a block has, where each computes an item of its own."""
    assert target.gpu is not None
    most = min(target.gpu.block_threads, max(1, 1 << (items - 1).bit_length()))
    options = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n <= most]
    wanted = min(64 if items < 256 * target.gpu.units else 256, most)
    return cfg.choose("threads", options[-5:], max(n for n in options if n <= wanted))


def spread(axes: Sequence[tuple[str, int]], threads: int, body: Sequence[Stmt]) -> Stmt:
    """for axes: S  →  for blocks: for threads: if there is an item: let axes = its digits: S"""
    items = math.prod(extent for _, extent in axes)
    item = Var(BLOCK) * threads + Var(THREAD)
    inner = at_item(axes, item, tuple(body))
    if items % threads:
        inner = (If(s.lt(item, items), inner),)
    blocks = -(-items // threads)
    return over(BLOCK, blocks, "block.x", over(THREAD, threads, "thread.x", *inner))


def at_item(axes: Sequence[tuple[str, int]], item: Expr, body: Body) -> Body:
    """let axes = the item's digits: S"""
    items = math.prod(extent for _, extent in axes)
    below = 1
    for name, extent in reversed(axes):
        digit = s.binary("floordiv", item, below)
        if below * extent < items:
            digit = s.binary("mod", digit, extent)
        body = (let(name, digit, body),)
        below *= extent
    return body


def over(var: str, extent: int, kind: str, *body: Stmt) -> For:
    return For(var, s.const(0), s.const(extent), body, kind)


def let(var: str, value: Expr, body: Body) -> For:
    """`body` with a variable of that value: a loop of one iteration."""
    return For(var, value, linear(value + 1).expr(), body)


def sequential(body: Body) -> Body:
    """parallel loops  →  serial ones"""
    found: list[Stmt] = []
    for st in body:
        match st:
            case For():
                kind = "serial" if st.kind == "parallel" else st.kind
                st = replace(st, kind=kind, body=sequential(st.body))
            case If():
                st = If(st.cond, sequential(st.then), sequential(st.other))
            case _ if hasattr(st, "body"):
                st = replace(st, body=sequential(st.body))  # type: ignore[call-arg]
        found.append(st)
    return tuple(found)
