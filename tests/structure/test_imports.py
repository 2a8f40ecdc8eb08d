"""Who may import whom (docs/architecture.md), no cycles, no own import hidden in a function."""

from __future__ import annotations

import ast

import networkx as nx
import pytest

from .imports import ROOT, Import, imports, modules

LEAVES = ("errors", "settings")
MAY_IMPORT = {
    "runtime": (),
    "compiler": (),
    "frontends": ("compiler",),
    "graph_passes": ("compiler",),
    "op_tuner": ("compiler", "runtime"),
    "models": ("compiler", "frontends"),
}
"""Folders, and which others they may import besides the leaves and themselves. Everything else in the package
(pipeline, cli, commands, …) stands above them: it may import all of it, and none of it may import back."""

COMPILER = (
    "codegen",
    "lower",
    "templates",
    "schedule",
    "kernel_task",
    "ops",
    "ir",
    "target",
    "opencl_device",
    "cuda_device",
    "in_child",
)
"""Parts of compiler/: each may import itself and those that stand to its right."""

TYPES_ONLY = {("compiler.ir.graph", "compiler.ops.base")}
"""Imports under `if TYPE_CHECKING` that point the other way: a node holds an operator."""

DYNAMIC = {"", "cli"}
"""May import own modules by name: the lazy package and commands that are loaded late."""


def allowed(found: Import) -> bool:
    source, target = found.source.split("."), found.target.split(".")
    if source[0] in LEAVES:
        return found.source == "settings" and found.target == "errors"
    if found.source == "" or target[0] in LEAVES:
        return True
    if source[0] not in MAY_IMPORT:
        return True
    if target[0] != source[0]:
        return target[0] in MAY_IMPORT[source[0]]
    if source[0] == "compiler" and len(source) > 1 and len(target) > 1 and source[1] in COMPILER:
        return target[1] in COMPILER[COMPILER.index(source[1]) :]
    return True


def test_arrows():
    wrong = [str(i) for i in imports() if not i.for_types and not allowed(i)]
    assert not wrong, "\n".join(wrong)


def test_imports_for_types_keep_the_arrows_too():
    wrong = [
        str(i) for i in imports() if i.for_types and not allowed(i) and (i.source, i.target) not in TYPES_ONLY
    ]
    assert not wrong, "\n".join(wrong)


def test_no_cycles():
    graph = nx.DiGraph((i.source, i.target) for i in imports() if not i.for_types)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    cycles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not cycles, cycles


def test_no_own_import_in_a_function():
    hidden = [str(i) for i in imports() if i.in_function]
    assert not hidden, "\n".join(hidden)


def imports_by_name(tree: ast.Module) -> list[ast.Call]:
    """Calls of import_module whose name is no literal of another project."""
    names = {"import_module", "__import__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "importlib":
            names |= {a.asname for a in node.names if a.name == "import_module" and a.asname}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    calls = [c for c in calls if getattr(c.func, "attr", getattr(c.func, "id", "")) in names]

    def foreign(call: ast.Call) -> bool:
        name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else "."
        return isinstance(name, str) and not name.startswith((".", "burnish"))

    return [c for c in calls if not foreign(c)]


def test_no_import_by_name():
    found = {
        name
        for name, path in modules().items()
        if imports_by_name(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    }
    assert found == DYNAMIC


def test_tests_and_examples_are_not_imported():
    assert not [str(i) for i in imports() if i.target.split(".")[0] in ("tests", "examples")]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("compiler.ir.graph", "compiler.ops.base", False),
        ("compiler.ops.conv", "compiler.ir.expr", True),
        ("compiler.codegen.llvm", "compiler.lower.lower", True),
        ("compiler.lower.lower", "compiler.codegen.llvm", False),
        ("compiler.ir.graph", "runtime.build", False),
        ("graph_passes.fold", "frontends.onnx", False),
        ("op_tuner.measure", "runtime.build", True),
        ("models.zoo", "frontends.onnx", True),
        ("models.zoo", "pipeline", False),
        ("pipeline", "runtime.build", True),
        ("errors", "settings", False),
    ],
)
def test_the_rule_itself(source, target, expected):
    assert allowed(Import(source, target, 1, False, False)) is expected


def test_the_reader_sees_the_package():
    names = modules()
    assert {"", "errors", "compiler.ir.graph", "runtime"} <= set(names)
    edges = {(i.source, i.target) for i in imports()}
    assert ("compiler.ir.graph", "compiler.ir.types") in edges and ("compiler.ir.graph", "errors") in edges
