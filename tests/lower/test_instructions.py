"""Code takes only the instructions that a target names, whatever its CPU has besides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from burnish.compiler.codegen.llvm import assembly, generate
from burnish.compiler.ir.types import TensorType
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.lower.lower import lower
from burnish.compiler.ops.base import Op
from burnish.compiler.ops.elementwise import Binary
from burnish.compiler.ops.fused import expression
from burnish.compiler.ops.movement import Transpose
from burnish.compiler.target import TARGETS, Target

AVX512 = r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|[23]\d)"


def code(op: Op, types: tuple[str, ...], target: Target) -> str:
    expr = expression(op, tuple(TensorType.parse(t) for t in types))
    task = KernelTask("kernel", expr, (), frozenset(), "map", target, 1)
    return assembly(generate(lower(task, DefaultConfig()), target), target)


@pytest.mark.parametrize(
    "op, types",
    [
        (Binary("max"), ("f32[3,13]", "f32[3,13]")),
        (Binary("add"), ("u8[77]", "u8[77]")),
        (Transpose((1, 0)), ("u8[33,19]",)),
    ],
    ids=str,
)
def test_a_hypervisor_may_hide_what_a_cpu_has(op: Op, types: tuple[str, ...]) -> None:
    hidden, whole = replace(TARGETS["x86-64-v3"], cpu="znver4"), replace(TARGETS["x86-64-v4"], cpu="znver4")
    assert re.search("%ymm|%xmm", code(op, types, hidden))
    assert not re.search(AVX512, code(op, types, hidden))
    assert re.search(AVX512, code(op, types, whole))
