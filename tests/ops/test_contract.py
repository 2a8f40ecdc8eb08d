"""The operator contract: what every class in OPS must have."""

import ast
import importlib
import pkgutil
from pathlib import Path

import burnish.compiler.ops
import burnish.frontends.onnx
import pytest
from burnish.compiler.ops.base import OPS

from .case import all_cases

INTERNAL = {
    "FusedOp": "the fuse pass makes it of operators that each have a case",
    "LstmRecurrence": "LSTM decomposes into it",
    "GruRecurrence": "GRU decomposes into it",
    "RnnRecurrence": "RNN decomposes into it",
}
"""Operators that no import rule makes, and why they exist."""
WITHOUT_CASE = {"FusedOp"}


def _all_ops() -> list[str]:
    for module in pkgutil.iter_modules(burnish.compiler.ops.__path__):
        importlib.import_module(f"burnish.compiler.ops.{module.name}")
    return sorted(OPS)


def _names_in_rules() -> set[str]:
    """Every name that an import rule calls or passes on."""
    names: set[str] = set()
    for path in Path(burnish.frontends.onnx.__path__[0]).glob("rules_*.py"):
        names |= {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    return names


@pytest.mark.parametrize("name", _all_ops())
def test_contract(name: str) -> None:
    op = OPS[name]
    methods = set(vars(op)) | {m for base in op.__mro__[1:-2] for m in vars(base)}
    assert {"infer", "reference"} <= methods
    assert len(methods & {"compute", "loops", "decompose"}) == 1, "exactly one way of computing it"
    assert op.__doc__, "a docstring that defines it"
    assert name in _names_in_rules() or name in INTERNAL, "an import rule, or a reason in INTERNAL"
    assert name in WITHOUT_CASE or any(type(case.op) is op for case in all_cases()), (
        "a case in tests/ops/cases_*.py"
    )
