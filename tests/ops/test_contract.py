"""The operator contract: what every class in OPS must have."""

import ast
import importlib
import pkgutil
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import burnish.compiler.ops
import burnish.frontends.onnx
import pytest
from burnish.compiler.ops.base import OPS

from .case import all_cases

INTERNAL = {
    "FusedOp": "the fuse pass makes it of operators that each have a case",
    "DotDepthwise": "multiply_bytes makes it of convolutions of 8-bit integers, channel by channel",
    "DotConv": "multiply_bytes makes it of convolutions of 8-bit integers",
    "DotMatMul": "multiply_bytes makes it of matrix products of 8-bit integers",
    "BlockedFlatten": "layout assignment makes it of a Reshape",
    "PackedGru": "layout assignment makes it of a GruRecurrence with constant weights",
    "PackedLstm": "layout assignment makes it of an LstmRecurrence with constant weights",
    "QuarterSums": "Strassen's algorithm packs weights by it",
    "Rounded": "widen makes it of what operators on narrow floats round",
    "TapTransform": "algorithms pack weights by it",
    "PackedRnn": "layout assignment makes it of an RnnRecurrence with constant weights",
}
"""Operators that neither a rule nor a decomposition makes, and why they exist."""
WITHOUT_CASE = {"FusedOp"}


def _all_ops() -> list[str]:
    for module in pkgutil.iter_modules(burnish.compiler.ops.__path__):
        importlib.import_module(f"burnish.compiler.ops.{module.name}")
    return sorted(OPS)


@lru_cache(maxsize=1)
def _reachable() -> set[str]:
    """Every name that import rules mention, or other operators, which decompose into it."""
    files = (*_sources(burnish.frontends.onnx, "rules_*.py"), *_sources(burnish.compiler.ops, "*.py"))
    trees = [ast.parse(path.read_text()) for path in files]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _sources(package: ModuleType, pattern: str) -> list[Path]:
    return sorted(Path(package.__path__[0]).glob(pattern))


@pytest.mark.parametrize("name", _all_ops())
def test_contract(name: str) -> None:
    op = OPS[name]
    methods = set(vars(op)) | {m for base in op.__mro__[1:-2] for m in vars(base)}
    assert {"infer", "reference"} <= methods
    assert len(methods & {"compute", "loops", "decompose"}) == 1, "exactly one way of computing it"
    assert op.__doc__, "a docstring that defines it"
    assert name in _reachable() or name in INTERNAL, (
        "an import rule, an operator that decomposes into it, or a reason"
    )
    assert name in WITHOUT_CASE or any(type(case.op) is op for case in all_cases()), (
        "a case in tests/ops/cases_*.py"
    )
