"""Control flow whose course is known when compiling: the branch taken is inlined, iterations are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onnx import AttributeProto, GraphProto

from ...errors import ModelError
from .registry import NodeContext

if TYPE_CHECKING:
    from .importer import Importer, Scope


def _graph(c: NodeContext, name: str) -> GraphProto:
    for a in c.node.attribute:
        if a.name == name and a.type == AttributeProto.GRAPH:
            return a.g
    raise ModelError(f"{c.label}: attribute {name!r} is missing")


def _if(importer: Importer, c: NodeContext, scope: Scope) -> Sequence[str | None]:
    condition = c.value(c.inputs[0], "condition")
    if condition.size != 1:
        raise ModelError(f"{c.label}: its condition has {condition.size} elements, expected one")
    taken = "then_branch" if bool(condition.reshape(())) else "else_branch"
    return importer.subgraph(_graph(c, taken), scope.inner(c.g.node_name), ())


def _unsupported(importer: Importer, c: NodeContext, scope: Scope) -> Sequence[str | None]:
    raise c.unsupported("a loop", "unroll it before exporting the model")


CONTROL_FLOW: dict[str, Callable[[Importer, NodeContext, Scope], Sequence[str | None]]] = {
    "If": _if,
    "Loop": _unsupported,
    "Scan": _unsupported,
}
