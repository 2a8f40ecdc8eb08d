"""The graph: a network as operators on typed values.

    graph NAME(x: f32[1,3,8,8]) -> y
      const w: f32[4,3,3,3]
      y: f32[1,4,8,8] = Conv(x, w) {strides: (1, 1), …} "the ONNX node's name"

Meaning: nodes run in the order in which they stand; every value is defined once, before it is used. Constants
carry their arrays. Nodes are frozen; passes build new graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InternalError
from .types import TensorType, dtype_of

if TYPE_CHECKING:
    from ..ops.base import Op


@dataclass(frozen=True)
class Node:
    """One operator. An absent optional input is None. `name` is what messages call it (its ONNX name)."""

    op: Op
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    name: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(i for i in self.inputs if i is not None)

    def input(self, n: int) -> str | None:
        """None where there are fewer, too."""
        return self.inputs[n] if n < len(self.inputs) else None


@dataclass(frozen=True)
class Graph:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]  # of every value, constants included
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    setup: tuple[Node, ...] = ()  # how some constants were made of others, which are kept

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def input_types(self, node: Node) -> tuple[TensorType | None, ...]:
        return tuple(None if i is None else self.types[i] for i in node.inputs)

    def output_types(self, node: Node) -> tuple[TensorType, ...]:
        return tuple(self.types[o] for o in node.outputs)

    @cached_property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants.values())

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        return {o: node for node in self.nodes for o in node.outputs}

    def producers(self) -> dict[str, Node]:
        """A copy of `makers`, to be changed."""
        return dict(self.makers)

    def consumers(self) -> dict[str, list[Node]]:
        """Readers of each value, a node once per value; graph outputs are not counted."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for i in dict.fromkeys(node.reads):
                readers.setdefault(i, []).append(node)
        return readers

    def with_nodes(
        self,
        nodes: Iterable[Node],
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
        outputs: tuple[str, ...] | None = None,
    ) -> Graph:
        """A graph of other nodes; types and constants are added to those known, and what is unused goes."""
        all_types = {**self.types, **(types or {})}
        all_constants = {**self.constants, **(constants or {})}
        for name, array in (constants or {}).items():
            all_types.setdefault(name, TensorType(dtype_of(array), array.shape))
        return prune(
            replace(
                self,
                nodes=tuple(nodes),
                types=all_types,
                constants=all_constants,
                outputs=outputs or self.outputs,
            )
        )


def fresh_name(like: str, taken: Container[str], tried: Counter[str] | None = None) -> str:
    """`like` with the first number behind it that makes it new; whoever asks often keeps those `tried`."""
    n = 1 if tried is None else tried[like] + 1
    while f"{like}.{n}" in taken:
        n += 1
    if tried is not None:
        tried[like] = n
    return f"{like}.{n}"


def prune(graph: Graph) -> Graph:
    """Without nodes, constants and types that no output needs."""
    needed = set(graph.outputs)
    nodes = _needed(graph.nodes, needed)
    setup = _needed(graph.setup, needed)
    used = needed.union(graph.inputs, *(node.outputs for node in nodes))
    return replace(
        graph,
        nodes=nodes,
        setup=setup,
        types={v: t for v, t in graph.types.items() if v in used},
        constants={v: a for v, a in graph.constants.items() if v in used},
    )


def _needed(nodes: tuple[Node, ...], needed: set[str]) -> tuple[Node, ...]:
    """The nodes that make a needed value; what they read is needed too."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.reads)
    return tuple(reversed(kept))


def verify(graph: Graph) -> None:
    """InternalError unless values are defined once, before use, with the types that the operators infer."""
    defined = set(graph.inputs) | set(graph.constants)
    if len(defined) != len(graph.inputs) + len(graph.constants):
        raise InternalError(
            f"graph {graph.name}: a value is both input and constant, or an input stands twice"
        )
    for name, array in graph.constants.items():
        type = graph.types[name]
        if tuple(array.shape) != type.physical_shape or array.dtype != type.dtype.numpy:
            raise InternalError(f"constant {name}: array {array.dtype}{list(array.shape)} but type {type}")
    for node in graph.nodes:
        for value in node.reads:
            if value not in defined:
                raise InternalError(f"node {node.name!r} reads {value!r}, which is not defined before it")
        for value in node.outputs:
            if value in defined:
                raise InternalError(f"value {value!r} is defined twice, again by node {node.name!r}")
            defined.add(value)
        inferred = node.op.infer(*graph.input_types(node))
        for value, type in zip(node.outputs, inferred):
            held = graph.types[value]
            if (held.dtype, held.shape) != (type.dtype, type.shape):
                raise InternalError(
                    f"node {node.name!r}: {value!r} is held as {held}, but inferred as {type}"
                )
    for value in graph.outputs:
        if value not in defined:
            raise InternalError(f"graph output {value!r} is not defined")


def interpret(
    graph: Graph, inputs: Mapping[str, np.ndarray], watch: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Outputs, and the values named in `watch`, by the operators' numpy references. Arrays are logical."""
    env: dict[str, np.ndarray] = {name: np.asarray(inputs[name]) for name in graph.inputs}
    for name, array in graph.constants.items():
        type = graph.types[name]
        env[name] = array if type.layout is None else type.layout.unpack(array, type.dims)
    for node in graph.nodes:
        results = node.op.reference(*(None if i is None else env[i] for i in node.inputs))
        env.update(zip(node.outputs, results))
    return {name: env[name] for name in dict.fromkeys((*graph.outputs, *watch))}


def print_graph(graph: Graph) -> str:
    """One line a value; `text.parse_graph` reads it back (constants without their data)."""
    inputs = ", ".join(f"{_name(i)}: {graph.types[i]}" for i in graph.inputs)
    lines = [f"graph {_name(graph.name)}({inputs}) -> {', '.join(map(_name, graph.outputs))}"]
    lines += [f"  const {_name(n)}: {graph.types[n]}" for n in graph.constants]
    for node in graph.nodes:
        outs = ", ".join(f"{_name(o)}: {graph.types[o]}" for o in node.outputs)
        args = ", ".join("_" if i is None else _name(i) for i in node.inputs)
        fields = ", ".join(f"{k}: {v!r}" for k, v in node.op.attributes().items())
        lines.append(f"  {outs} = {type(node.op).__name__}({args}) {{{fields}}} {node.name!r}")
    return "\n".join(lines)


def _name(value: str) -> str:
    plain = value.replace("_", "").replace(".", "").replace("/", "")
    return value if plain.isalnum() and value.isascii() and value != "_" else repr(value)
