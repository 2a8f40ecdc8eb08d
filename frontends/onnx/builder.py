"""The graph under construction: names, size limits, and shape computations evaluated as they are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from ...compiler.ir.graph import Graph, Node, prune
from ...compiler.ir.types import TensorType, dtype_of
from ...compiler.ops.base import Decomposer, Op
from ...compiler.ops.evaluate import evaluate
from ...compiler.ops.quantize import of_weights
from ...errors import ModelError
from .external_data import checked_bytes
from .narrow import stored_array

EAGER_BYTES = 1 << 20
"""Operators on constants are evaluated at once where inputs and outputs together stay below this."""
ASKED_BYTES, ASKED_TOTAL_BYTES = 256 << 20, 1 << 30
"""The same of those whose results must be known, and what may be held of them at once."""
EAGER_TOTAL_BYTES = 256 << 20
"""What such results may take together; beyond it, operators stay in the graph."""


class Mark(NamedTuple):
    """A moment of the import: how many nodes and values there were."""

    nodes: int
    values: int


class GraphBuilder(Decomposer):
    """A Decomposer whose `emit` evaluates small operators on constants, so that shapes become known."""

    def __init__(self) -> None:
        super().__init__("", {}, {})
        self.reserved: set[str] = set()  # names of the model's own values, never given to others
        self.narrow: dict[str, str] = {}  # constants of a type that a wider one holds → ONNX's name of it
        self._age: dict[str, int] = {}  # value → how many were made before it
        self._made = 0
        self._stored: dict[int, tuple[TensorProto, tuple[np.ndarray, str]]] = {}  # by the tensor's identity
        self._evaluated_bytes = 0
        self._asked: dict[str, np.ndarray] = {}  # values of nodes that stay

    def begin(self, node_name: str) -> None:
        """Starts the import of one ONNX node: what is emitted from here on bears its name."""
        self.node_name, self._count = node_name, 0

    def mark(self) -> Mark:
        return Mark(len(self.nodes), self._made)

    def made_since(self, mark: Mark, value: str) -> bool:
        return self._age.get(value, -1) >= mark.values

    def fresh(self, hint: str = "t") -> str:
        name = super().fresh(hint)
        while name in self.reserved:
            name = super().fresh(hint)
        return name

    def add_constant(self, name: str, array: np.ndarray, narrow: str = "") -> None:
        if narrow:
            self.narrow[name] = narrow
        array = array if array.flags.c_contiguous else array.copy()
        self.constants[name] = array
        self.types[name] = TensorType(dtype_of(array), array.shape)
        self._grow(name)

    def _grow(self, name: str) -> None:
        self._age[name] = self._made
        self._made += 1

    def stored(self, tensor: TensorProto, folder: Path | None, what: str) -> tuple[np.ndarray, str]:
        """`stored_array`, read once of a tensor in a body that is imported for each iteration."""
        if id(tensor) not in self._stored:
            self._stored[id(tensor)] = tensor, stored_array(tensor, folder, what)
        return self._stored[id(tensor)][1]

    def const(self, array: np.ndarray, hint: str = "const", narrow: str = "") -> str:
        name = self.fresh(hint)
        self.add_constant(name, np.asarray(array), narrow)
        return name

    def emit(self, op: Op, *inputs: str | None, outputs: Sequence[str] | None = None) -> tuple[str, ...]:
        names = super().emit(op, *inputs, outputs=outputs)
        if op.has("decompose"):
            return names
        for name in names:
            type = self.types[name]
            checked_bytes(type.dtype, type.dims, f"node {self.node_name!r} ({op.name}): its output {name!r}")
            self._grow(name)
        self._evaluate_if_small()
        return names

    def _evaluate_if_small(self) -> None:
        node = self.nodes[-1]
        if any(i not in self.constants for i in node.reads):
            return
        if of_weights(node.op, self.types[node.outputs[0]]):
            return
        if sum(self.types[v].nbytes for v in (*node.reads, *node.outputs)) > EAGER_BYTES:
            return
        made = sum(self.types[v].nbytes for v in node.outputs)
        if self._evaluated_bytes + made > EAGER_TOTAL_BYTES:
            return
        results = evaluate(node, [None if i is None else self.constants[i] for i in node.inputs], self.types)
        if results is None:
            return
        self._evaluated_bytes += made
        self.nodes.pop()
        self.constants.update(zip(node.outputs, results))

    def computed(self, value: str) -> np.ndarray | None:
        """A value that is computed from constants alone; None if that takes too much or fails. Nodes stay."""
        if value in self._asked:
            return self._asked[value]
        needed = prune(Graph("", (), (value,), tuple(self.nodes), self.types, self.constants)).nodes
        readers = Counter([value, *(i for node in needed for i in {*node.reads})])
        found: dict[str, np.ndarray] = {}
        held = 0
        for node in needed:
            if sum(self.types[v].nbytes for v in (*node.reads, *node.outputs)) > ASKED_BYTES:
                return None
            given = [None if i is None else self.constants.get(i, found.get(i)) for i in node.inputs]
            results = evaluate(node, given, self.types)
            if results is None:
                return None
            found.update(zip(node.outputs, results))
            held += sum(array.nbytes for array in results)
            if held > ASKED_TOTAL_BYTES:
                return None
            readers.subtract({*node.reads})
            for i in {*node.reads, *node.outputs} & found.keys():
                if not readers[i]:
                    held -= found.pop(i).nbytes
        self._asked[value] = found[value]
        return found[value]

    def rename(self, old: str, new: str, since: Mark) -> None:
        """Gives a value made since the mark the name `new`, which must be unused."""
        if new in self.types:
            raise ModelError(f"node {self.node_name!r}: the value {new!r} is defined twice")
        self.types[new] = self.types.pop(old)
        self._asked.pop(old, None)
        if old in self.constants:
            self.constants[new] = self.constants.pop(old)
        if old in self.narrow:
            self.narrow[new] = self.narrow.pop(old)
        for at in range(since.nodes, len(self.nodes)):
            node = self.nodes[at]
            if old in node.inputs or old in node.outputs:
                inputs = tuple(new if i == old else i for i in node.inputs)
                outputs = tuple(new if o == old else o for o in node.outputs)
                self.nodes[at] = Node(node.op, inputs, outputs, node.name)
        self._age[new] = self._age[old]

    def sources(self, value: str) -> tuple[str, ...]:
        """The graph inputs that `value` is computed from, in order of discovery."""
        producers = {o: node for node in self.nodes for o in node.outputs}
        stack, seen, found = [value], {value}, []
        while stack:
            current = stack.pop()
            if current in producers:
                fresh = [i for i in producers[current].reads if i not in seen]
                seen.update(fresh)
                stack += reversed(fresh)
            elif current not in self.constants:
                found.append(current)
        return tuple(found)
