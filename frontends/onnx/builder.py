"""The graph under construction: names, size limits, and shape computations evaluated as they are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from ...compiler.ir.graph import Node
from ...compiler.ir.types import TensorType, dtype_of
from ...compiler.ops.base import Decomposer, Op
from ...compiler.ops.evaluate import MAX_WORK, evaluate, work
from ...compiler.ops.quantize import of_weights
from ...errors import ModelError
from .external_data import ModelFolder
from .small_types import stored_array
from .tensors import checked_bytes

MAX_VALUES = 1_000_000
"""Constants, and operands and results of nodes, after functions are inlined and loops unrolled."""
MAX_MADE_TOTAL_BYTES, UNPACKED = 4 << 30, 16
"""Of all constants that the importer makes up; besides, weights may become so many times larger than they are
in the file: two bits as a float."""
SMALLER = "export it with fewer iterations, calls of functions or operands"
EAGER_BYTES, EAGER_WORK = 1 << 20, 1 << 26
"""Operators on constants are evaluated at once where inputs and outputs, and `work`, stay below these."""
EAGER_TOTAL_BYTES = 256 << 20
"""What such results may take together; beyond it, operators stay in the graph."""
ASKED_BYTES, ASKED_TOTAL_BYTES = 256 << 20, 1 << 30
"""The same of those whose results must be known, and what may be held of them at once."""
KEPT_BYTES = 256 << 20
"""Of these, what is held for later questions."""


class Mark(NamedTuple):
    """A moment of the import: how many nodes and values there were."""

    nodes: int
    values: int


class GraphBuilder(Decomposer):
    """A Decomposer whose `emit` evaluates small operators on constants, so that shapes become known."""

    def __init__(self) -> None:
        super().__init__("", {}, {})
        self.reserved: set[str] = set()  # names of the model's own values, never given to others
        self.small_types: dict[str, str] = {}  # constant of a type that a wider one holds → ONNX's name
        self._age: dict[str, int] = {}  # value → how many were made before it
        self._made = 0
        self._stored: dict[int, tuple[TensorProto, tuple[np.ndarray, str]]] = {}  # by the tensor's identity
        self._counts: dict[str, int] = {}  # node name → how many names were made for it
        self._producers: dict[str, Node] = {}
        self._constant: set[str] = set()  # values of nodes that no graph input decides, as far as was asked
        self._values = self._made_bytes = self._evaluated_bytes = self._work = 0
        self._most_made_bytes = MAX_MADE_TOTAL_BYTES
        self._kept: dict[str, np.ndarray] = {}  # values of nodes that stay
        self._kept_bytes = 0

    def begin(self, node_name: str) -> None:
        """Starts the import of one ONNX node: what is emitted from here on bears its name."""
        self._counts[self.node_name] = self._count
        self.node_name, self._count = node_name, self._counts.get(node_name, 0)

    def count(self, values: int) -> None:
        """So many values more; ModelError if there are too many to be of use."""
        self._values += values
        if self._values > MAX_VALUES:
            where = f"node {self.node_name!r}: " if self.node_name else ""
            raise ModelError(f"{where}the model unfolds to more than {MAX_VALUES:,} values; {SMALLER}")

    def mark(self) -> Mark:
        return Mark(len(self.nodes), self._made)

    def made_since(self, mark: Mark, value: str) -> bool:
        return self._age.get(value, -1) >= mark.values

    def fresh(self, hint: str = "t") -> str:
        name = super().fresh(hint)
        while name in self.reserved:
            name = super().fresh(hint)
        return name

    def add_constant(self, name: str, array: np.ndarray, small_type: str = "") -> None:
        if small_type:
            self.small_types[name] = small_type
        array = array if array.flags.c_contiguous else array.copy()
        self.constants[name] = array
        self.types[name] = TensorType(dtype_of(array), array.shape)
        self._grow(name)

    def _grow(self, name: str) -> None:
        self.count(1)
        self._age[name] = self._made
        self._made += 1

    def stored(self, tensor: TensorProto, folder: ModelFolder | None, what: str) -> tuple[np.ndarray, str]:
        """`stored_array`, read once of a tensor in a body that is imported for each iteration."""
        if id(tensor) not in self._stored:
            self._stored[id(tensor)] = tensor, stored_array(tensor, folder, what)
            self._most_made_bytes += UNPACKED * self._stored[id(tensor)][1][0].nbytes
        return self._stored[id(tensor)][1]

    def const(self, array: np.ndarray, hint: str = "const", small_type: str = "") -> str:
        array = np.asarray(array)
        if array.flags.writeable:  # made up: what a file holds is read-only
            self._made_bytes += array.nbytes
            if self._made_bytes > self._most_made_bytes:
                what = f"more than {self._most_made_bytes:,} bytes of constants"
                raise ModelError(f"node {self.node_name!r}: the model unfolds to {what}; {SMALLER}")
        name = self.fresh(hint)
        self.add_constant(name, array, small_type)
        return name

    def emit(self, op: Op, *inputs: str | None, outputs: Sequence[str] | None = None) -> tuple[str, ...]:
        names = super().emit(op, *inputs, outputs=outputs)
        if op.has("decompose"):
            return names
        for name in names:
            type = self.types[name]
            checked_bytes(type.dtype, type.dims, f"node {self.node_name!r} ({op.name}): its output {name!r}")
            self._grow(name)
        self.count(len(inputs))
        self._producers.update(dict.fromkeys(names, self.nodes[-1]))
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
        if self._evaluated_bytes + made > EAGER_TOTAL_BYTES or not self._affords(node, EAGER_WORK):
            return
        results = evaluate(node, [None if i is None else self.constants[i] for i in node.inputs], self.types)
        if results is None:
            return
        self._evaluated_bytes += made
        self.nodes.pop()
        self.constants.update(zip(node.outputs, results))
        for name in node.outputs:
            del self._producers[name]

    def _affords(self, node: Node, most: int = MAX_WORK) -> bool:
        """Whether a node may be evaluated; its work is then spent."""
        needed = work(node, self.types)
        if needed > most or self._work + needed > MAX_WORK:
            return False
        self._work += needed
        return True

    def computed(self, value: str) -> np.ndarray | None:
        """A value that is computed from constants alone; None if that takes too much or fails. Nodes stay."""
        needed = self._needed(value)
        readers = Counter([value, *(i for node in needed for i in {*node.reads})])
        for node in needed:
            if sum(self.types[v].nbytes for v in (*node.reads, *node.outputs)) > ASKED_BYTES:
                return None
            given = [None if i is None else self.constants.get(i, self._kept.get(i)) for i in node.inputs]
            results = evaluate(node, given, self.types) if self._affords(node) else None
            if results is None:
                return None
            readers.subtract({*node.reads})
            for name, array in zip(node.outputs, results):
                self._drop(name)
                self._kept[name] = array
                self._kept_bytes += array.nbytes
            self._forget(readers)
            if self._kept_bytes > ASKED_TOTAL_BYTES:
                return None
        return self._kept[value]

    def _forget(self, readers: Counter[str]) -> None:
        """Of what is kept the oldest beyond KEPT_BYTES, but what has readers."""
        for name in [*self._kept] if self._kept_bytes > KEPT_BYTES else ():
            if self._kept_bytes > KEPT_BYTES and not readers[name]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        if name in self._kept:
            self._kept_bytes -= self._kept.pop(name).nbytes

    def _needed(self, value: str) -> list[Node]:
        """The nodes that make a value of what is kept or constant, in order."""
        stack, found = [value], dict[str, Node]()
        while stack:
            current = stack.pop()
            if current in self.constants or current in self._kept or current in found:
                continue
            node = self._producers[current]
            found.update(dict.fromkeys(node.outputs, node))
            stack += node.reads
        return sorted({id(n): n for n in found.values()}.values(), key=lambda n: self._age[n.outputs[0]])

    def rename(self, old: str, new: str) -> None:
        """Gives a value the name `new`, which must be unused; `rename_uses` must follow."""
        if new in self.types:
            raise ModelError(f"node {self.node_name!r}: the value {new!r} is defined twice")
        self.types[new] = self.types.pop(old)
        self._age[new] = self._age[old]
        if old in self.constants:
            self.constants[new] = self.constants.pop(old)
        if old in self.small_types:
            self.small_types[new] = self.small_types.pop(old)
        if old in self._kept:
            self._kept[new] = self._kept.pop(old)
        if old in self._constant:
            self._constant.add(new)

    def rename_uses(self, names: Mapping[str, str], since: Mark) -> None:
        """Lets the nodes that were made since the mark use the new names of values."""
        for at in range(since.nodes, len(self.nodes)):
            node = self.nodes[at]
            inputs = tuple(i if i is None else names.get(i, i) for i in node.inputs)
            outputs = tuple(names.get(o, o) for o in node.outputs)
            if (inputs, outputs) == (node.inputs, node.outputs):
                continue
            for o in node.outputs:
                del self._producers[o]
            self.nodes[at] = Node(node.op, inputs, outputs, node.name)
            self._producers.update(dict.fromkeys(outputs, self.nodes[at]))

    def sources(self, value: str) -> tuple[str, ...]:
        """The graph inputs that `value` is computed from, in order of discovery."""
        stack, seen, found = [value], {value}, []
        while stack:
            current = stack.pop()
            if current in self._producers:
                reads = self._producers[current].reads
                fresh = [i for i in reads if i not in seen and i not in self._constant]
                seen.update(fresh)
                stack += reversed(fresh)
            elif current not in self.constants:
                found.append(current)
        if not found:
            self._constant |= seen
        return tuple(found)
