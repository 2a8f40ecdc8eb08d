"""The package's modules and who imports whom, read from the sources without importing anything."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_THE_PACKAGE = ("tests", "benchmarks", "examples", "docs", "build", "dist")


@dataclass(frozen=True)
class Import:
    """`source` imports `target` (dotted names below burnish, "" the package itself) on a line of its file."""

    source: str
    target: str
    line: int
    in_function: bool
    for_types: bool  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.source.replace('.', '/')}.py:{self.line} imports {self.target or 'burnish'}"


@lru_cache(maxsize=1)
def files() -> tuple[Path, ...]:
    """Python files of the package, relative to the root; what git ignores is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = listed.stdout.split() if listed.returncode == 0 else _without_git()
    paths = (Path(name) for name in sorted(set(names)))
    return tuple(p for p in paths if p.parts[0] not in NOT_THE_PACKAGE and (ROOT / p).exists())


def _without_git() -> list[str]:
    found = (p.relative_to(ROOT) for p in ROOT.rglob("*.py"))
    return [str(p) for p in found if not any(part.startswith(".") for part in p.parts)]


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in files()}


@lru_cache(maxsize=1)
def imports() -> tuple[Import, ...]:
    """Every import of an own module."""
    found: list[Import] = []
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for node, in_function, for_types in _walk(tree, False, False):
            for target in _targets(node, package):
                found.append(Import(name, target, node.lineno, in_function, for_types))
    return tuple(found)


def _walk(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[tuple[ast.stmt, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function, for_types
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        yield from _walk(child, inside, types)


def _targets(node: ast.stmt, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "burnish":
                yield alias.name.partition(".")[2]
        return
    assert isinstance(node, ast.ImportFrom)
    base = node.module or ""
    if node.level:
        parts = package.split(".") if package else []
        kept = parts[: len(parts) - (node.level - 1)]
        base = ".".join([*kept, *([base] if base else [])])
    elif base.split(".")[0] == "burnish":
        base = base.partition(".")[2]
    else:
        return
    for alias in node.names:
        inner = f"{base}.{alias.name}" if base else alias.name
        yield inner if inner in modules() else base
