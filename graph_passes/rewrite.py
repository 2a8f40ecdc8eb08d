"""Rewriting a graph by local rules, each named by its equation.

    @rule("relu(relu(x)) => relu(x)", Unary)
    def relu_twice(r: Rewriter, node: Node) -> str | None:
        ...

A rule looks at a node and, through `r`, at what produces its inputs. It returns the value that replaces the
node's first (and only) output: one that exists, or one made by `r.emit`; None where it does not apply. A node
whose result is no longer read disappears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..compiler.ir.graph import Graph, Node, fresh_name
from ..compiler.ir.types import TensorType, dtype_of
from ..compiler.ops.base import Op
from ..compiler.ops.movement import Identity
from ..errors import InternalError

O = TypeVar("O", bound=Op)
Number = float | int | bool


@dataclass(frozen=True)
class Rule:
    equation: str
    ops: tuple[type[Op], ...]  # the operators of the node that the rule looks at
    apply: Callable[[Rewriter, Node], str | None]


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node on values by these new names; other names stay."""
    inputs = tuple(None if v is None else names.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(v, v) for v in node.outputs))


def rule(equation: str, *ops: type[Op]) -> Callable[[Callable[[Rewriter, Node], str | None]], Rule]:
    return lambda function: Rule(equation, ops, function)


class Rewriter:
    """One pass over a graph in order; inputs of the node at hand are already simplified."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.producers = graph.producers()
        self.fired: Counter[str] = Counter()
        self._outputs = set(graph.outputs)
        self._readers = Counter(i for node in graph.nodes for i in node.reads)
        self._tried: Counter[str] = Counter()  # numbers behind names
        self._alias: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._pending: list[Node] = []
        self._name = ""

    # --- what rules ask -----------------------------------------------------------------------------------

    def type_of(self, value: str) -> TensorType:
        return self.types[value]

    def const(self, value: str | None) -> np.ndarray | None:
        return None if value is None else self.constants.get(value)

    def uniform(self, value: str | None) -> Number | None:
        """The one number that a constant holds everywhere; None if it is no constant, empty or mixed."""
        array = self.const(value)
        if array is None or array.size == 0 or (array.size > 1 and (array != array.flat[0]).any()):
            return None
        return array.flat[0].item()

    def made_by(self, value: str | None, op: type[O]) -> Node | None:
        """The node of kind `op` that computes `value`."""
        node = self.producers.get(value) if value is not None else None
        return node if node is not None and isinstance(node.op, op) else None

    def only_by(self, value: str | None, op: type[O]) -> Node | None:
        """The same, where nothing else reads `value`."""
        return self.made_by(value, op) if value is not None and self.sole(value) else None

    def sole(self, value: str) -> bool:
        return self._readers[value] <= 1 and value not in self._outputs

    # --- what rules make ----------------------------------------------------------------------------------

    def emit(self, op: Op, *inputs: str | None, name: str = "") -> str:
        """A new node of one output; messages call it `name` (default: as the node that is replaced)."""
        (type,) = op.infer(*(None if i is None else self.types[i] for i in inputs))
        value = fresh_name("rewritten", self.types, self._tried)
        self.types[value] = type
        self._pending.append(Node(op, inputs, (value,), name or self._name))
        return value

    def constant(self, array: np.ndarray, like: str) -> str:
        """A new constant, named after `like`."""
        value = fresh_name(like, self.types, self._tried)
        self.constants[value] = np.asarray(array, order="C")
        self.types[value] = TensorType(dtype_of(array), array.shape)
        return value

    # --- the pass -----------------------------------------------------------------------------------------

    def run(self, rules: Sequence[Rule]) -> Graph:
        for node in self.graph.nodes:
            inputs = tuple(i if i is None else self._alias.get(i, i) for i in node.inputs)
            self._visit(replace(node, inputs=inputs) if inputs != node.inputs else node, rules)
        return self.graph.with_nodes(self._nodes, self.types, self.constants)

    def _visit(self, node: Node, rules: Sequence[Rule]) -> None:
        self._name = node.name
        for candidate in rules:
            if not isinstance(node.op, candidate.ops):
                continue
            value = candidate.apply(self, node)
            if value is None:
                if self._pending:
                    raise InternalError(f"rule {candidate.equation!r} emitted a node and then did not apply")
                continue
            if self._substitute(node, value):
                self.fired[candidate.equation] += 1
                return
        self._append(node)

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        self.producers.update((o, node) for o in node.outputs)

    def _substitute(self, node: Node, value: str) -> bool:
        """Puts `value` in the place of the node's output; False where that would change nothing."""
        (output,) = node.outputs
        old, new = self.types[output], self.types[value]
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            raise InternalError(f"node {node.name!r}: {output!r} is {old}, but is rewritten to {new}")
        made, self._pending = self._pending, []
        if made and made[-1].outputs == (value,):
            made[-1] = replace(made[-1], outputs=node.outputs)
        elif output in self._outputs:
            if isinstance(node.op, Identity):
                return False
            made.append(Node(Identity(), (value,), node.outputs, node.name))
        else:
            self._alias[output] = value
            self._readers[value] += self._readers[output]
        for new_node in made:
            self._append(new_node)
        return True
