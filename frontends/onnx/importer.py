"""From an ONNX model to a Graph of Burnish's operators with static shapes.

Nodes are imported in order by the rules of `registry.py`; an operator without a rule is replaced by the body
that the model or ONNX defines for it. Operators on small constants are evaluated at once, so that shapes
become known.
"""

from __future__ import annotations

import inspect
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from ...compiler.ir.graph import Graph, Node, prune
from ...compiler.ops.movement import Identity
from ...errors import BurnishError, ModelError, UnsupportedError
from .builder import SMALLER, GraphBuilder, Mark
from .control_flow import CONTROL_FLOW
from .functions import BoundNodes, onnx_function
from .interface import check_declared, domain_of, resolve_inputs
from .read_model import (
    MAX_DEPTH,
    NEWEST_OPSET,
    Model,
    node_label,
    opset_imports,
    read_model,
    unknown_operator,
)
from .registry import NodeContext, find_rule
from .small_types import SMALL_TYPE_READERS

T = TypeVar("T")

MAX_NODES = 100_000
"""After functions are inlined and loops unrolled."""


def import_onnx(
    model: str | Path | bytes | ModelProto,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """The graph of a model given as path, bytes or ModelProto.

    shapes  sizes of whole inputs, by input name
    dims    sizes of the model's named dims
    values  inputs that become constants; they vanish from the graph's inputs
    Raises InputError (unreadable file; shapes, dims or values that do not fit), ModelError (broken model),
    UnsupportedError (valid, but beyond Burnish), NeedsValueError (an input's value decides a shape).
    """
    importer = Importer(read_model(model))
    return importer.run(
        {} if shapes is None else shapes, {} if dims is None else dims, {} if values is None else values
    )


@dataclass(frozen=True)
class Scope:
    """Where a node stands: the values that it sees by ONNX name, its function's opsets and attributes, if it
    is in one."""

    values: MutableMapping[str, str | None]
    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] | None
    prefix: str = ""
    depth: int = 0

    def inner(self, prefix: str) -> Scope:
        """For a subgraph, which sees the values around it."""
        return replace(self, values=ChainMap({}, self.values), prefix=prefix, depth=self.depth + 1)


class Importer:
    """The state of one import. `control_flow` calls back into it."""

    def __init__(self, model: Model):
        self.model = model
        self.g = GraphBuilder()
        self.functions = {(f.domain, f.name, f.overload): f for f in model.skeleton.functions}
        self._bound = BoundNodes()
        self._count = 0
        self._repeats: Counter[str] = Counter()  # of names that values have within functions and graphs
        self._makers: dict[str, str] = {}  # value of the main graph → label of the node that makes it
        self._refused: dict[str, str] = {}  # initializer that is not supported → why

    def run(
        self, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], values: Mapping[str, np.ndarray]
    ) -> Graph:
        graph = self.model.proto.graph
        self._reserve_names(graph)
        scope = Scope({}, self.model.opsets, None)
        initializers = {t.name for t in graph.initializer}
        inputs = [i for i in graph.input if i.name not in initializers or i.name in values]
        readers: dict[str, str] = {}
        for node in reversed(graph.node):
            readers.update(dict.fromkeys(node.input, node_label(node)))
        types, _ = resolve_inputs(inputs, shapes, dims, values, readers)
        for name, type in types.items():
            if name in values:
                self.g.add_constant(name, np.asarray(values[name]))
            else:
                self.g.types[name] = type
            scope.values[name] = name
        self.initializers(graph, scope, skip=values)
        self.nodes(self.model.skeleton.graph.node, scope)
        outputs = self._outputs([o.name for o in graph.output], scope)
        held = {n: self.g.types[v] for n, v in scope.values.items() if v and v not in self.g.small_types}
        check_declared(graph.value_info, "value", held, self._makers)
        check_declared(graph.output, "graph output", held, self._makers)
        return self._graph(graph, tuple(n for n in types if n not in values), outputs)

    def _reserve_names(self, graph: GraphProto) -> None:
        names = [i.name for i in graph.input] + [t.name for t in graph.initializer]
        self.g.reserved.update(names, (o for node in graph.node for o in node.output))

    def _graph(self, graph: GraphProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        name = graph.name or "graph"
        return prune(Graph(name, inputs, outputs, tuple(self.g.nodes), self.g.types, self.g.constants))

    def initializers(self, graph: GraphProto, scope: Scope, skip: Iterable[str] = ()) -> None:
        """What is of no supported type is refused where it is read first, if ever."""
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            why = f"initializer {name!r} is sparse, which is not supported"
            self._refuse(name, UnsupportedError(why), scope)
        for t in graph.initializer:
            if t.name in skip:
                continue
            try:
                array, small_type = self.g.stored(t, self.model.folder, f"initializer {t.name!r}")
            except UnsupportedError as error:
                self._refuse(t.name, error, scope)
                continue
            name = self._define(t.name, scope)
            self.g.add_constant(name, array, small_type)
            scope.values[t.name] = name

    def _refuse(self, name: str, error: UnsupportedError, scope: Scope) -> None:
        """At once where a graph around this one has a value of the name, which would be read instead."""
        if name in scope.values:
            raise error
        self._refused[name] = str(error)

    def _define(self, name: str, scope: Scope) -> str:
        """A graph-wide unique name for the ONNX value `name`."""
        if not scope.prefix:
            return name
        unique = full = f"{scope.prefix}/{name}"
        while unique in self.g.types or unique in self.g.reserved:
            self._repeats[full] += 1
            unique = f"{full}.{self._repeats[full]}"
        return unique

    # --- nodes --------------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[NodeProto], scope: Scope) -> None:
        for node in nodes:
            self.node(self._bound.bind(node, scope.attributes), scope)

    def node(self, node: NodeProto, scope: Scope) -> None:
        """Imports one node; its outputs are then in `scope`."""
        name, mark = self._node_name(node, scope), self.g.mark()
        self.g.begin(name)
        self.count(node)
        domain = domain_of(node)
        inputs = tuple(self._read(node, name, scope) for name in node.input)
        if function := self.functions.get((node.domain, node.op_type, node.overload)):
            attributes = {a.name: a for a in function.attribute_proto}
            results: Sequence[str | None] = self.call(node, function, attributes, inputs, scope, name)
        else:
            results = self._standard(node, domain, inputs, scope, name)
        self._bind_outputs(node, results, scope, mark)

    def count(self, node: NodeProto) -> None:
        """One node or iteration more; ModelError if there are too many to be of use."""
        self._count += 1
        if self._count > MAX_NODES:
            raise ModelError(
                f"{node_label(node)}: the model unfolds to more than {MAX_NODES:,} nodes; {SMALLER}"
            )
        self.g.count(len(node.input) + len(node.output))

    def _node_name(self, node: NodeProto, scope: Scope) -> str:
        own = node.name or f"{node.op_type}:{next((o for o in node.output if o), '')}"
        return f"{scope.prefix}/{own}" if scope.prefix else own

    def _read(self, node: NodeProto, name: str, scope: Scope) -> str | None:
        if not name:
            return None
        return self._found(name, scope, f"{node_label(node)} reads {name!r}, which nothing before it defines")

    def _found(self, name: str, scope: Scope, missing: str) -> str | None:
        if name in scope.values:
            return scope.values[name]
        if name in self._refused:
            raise UnsupportedError(self._refused[name])
        raise ModelError(missing)

    def _standard(
        self, node: NodeProto, domain: str, inputs: tuple[str | None, ...], scope: Scope, name: str
    ) -> Sequence[str | None]:
        opset = scope.opsets.get(domain)
        if opset is None:
            raise ModelError(
                f"{node_label(node)}: the model imports no opset of the domain {domain or 'ai.onnx'!r}"
            )
        for value in inputs:
            if value in self.g.small_types and node.op_type not in SMALL_TYPE_READERS:
                raise UnsupportedError(
                    f"{node_label(node)}: {value!r} has the element type {self.g.small_types[value]}, which "
                    f"only {', '.join(SMALL_TYPE_READERS)} may read"
                )
        context = NodeContext(self.g, node, opset, inputs, self.g.sources, self.g.computed)
        if domain == "" and node.op_type in CONTROL_FLOW:
            return self._guarded(context, lambda: CONTROL_FLOW[node.op_type](self, context, scope))
        rule = find_rule(node.op_type, opset, domain)
        if rule is not None:
            return self._apply(rule, context)
        types = [None if i is None else self.g.types[i] for i in inputs]
        found = self._guarded(context, lambda: onnx_function(node, opset, types))
        if found is None:
            raise unknown_operator(node, opset)
        return self.call(node, found[0], found[1], inputs, scope, name)

    @staticmethod
    def _guarded(context: NodeContext, work: Callable[[], T]) -> T:
        """Whatever goes wrong names the node."""
        try:
            return work()
        except BurnishError:
            raise
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise ModelError(f"{context.label} cannot be imported: {what}") from error

    def _apply(self, rule, context: NodeContext) -> tuple[str | None, ...]:  # type: ignore[no-untyped-def]
        try:
            inspect.signature(rule).bind(context, *context.inputs)
        except TypeError as error:
            raise ModelError(f"{context.label}: {len(context.inputs)} inputs do not fit: {error}") from None
        try:
            results = self._guarded(context, lambda: rule(context, *context.inputs))
        except BurnishError as error:
            if repr(self.g.node_name) in str(error) or context.label in str(error):
                raise
            error.args = (f"{context.label}: {error}", *error.args[1:])
            raise
        return (results,) if isinstance(results, str) else tuple(results)

    def call(
        self,
        node: NodeProto,
        function: FunctionProto,
        defaults: Mapping[str, AttributeProto],
        inputs: Sequence[str | None],
        scope: Scope,
        name: str,
    ) -> list[str | None]:
        """Imports the body of a function in place of `node`; returns the values of its outputs."""
        if scope.depth >= MAX_DEPTH:
            raise ModelError(f"{node_label(node)}: functions call each other deeper than {MAX_DEPTH}")
        if len(inputs) > len(function.input):
            raise ModelError(
                f"{node_label(node)} has {len(inputs)} inputs; its function takes {len(function.input)}"
            )
        self.g.count(len(function.input) + len(function.output) + len(defaults))
        values = dict.fromkeys(function.input) | dict(zip(function.input, inputs))
        given = dict(defaults) | {a.name: a for a in node.attribute}
        opsets = opset_imports(function.opset_import, f"function {function.name!r}")
        opsets = {"": NEWEST_OPSET, **scope.opsets, **opsets}
        try:
            self.nodes(function.node, Scope(values, opsets, given, name, scope.depth + 1))
        except BurnishError as error:
            if node_label(node) not in str(error):
                error.args = (f"{node_label(node)}: {error}", *error.args[1:])
            raise
        for output, wanted in zip(function.output, node.output):
            if wanted and output not in values:
                raise ModelError(f"{node_label(node)}: its function never defines its output {output!r}")
        return [values.get(output) for output in function.output]

    def subgraph(
        self,
        graph: GraphProto,
        scope: Scope,
        inputs: Sequence[str] = (),
        arguments: Sequence[str | None] = (),
    ) -> list[str | None]:
        """Imports the body of a control-flow operator; returns the values of its outputs."""
        if scope.depth >= MAX_DEPTH:
            raise ModelError(f"node {scope.prefix!r}: graphs are nested deeper than {MAX_DEPTH}")
        self.g.begin(scope.prefix)
        self.g.count(sum(map(len, (graph.input, graph.output, graph.initializer, graph.sparse_initializer))))
        given = dict(zip(inputs, arguments))
        scope.values.update(given)
        self.initializers(graph, scope, skip=given)  # they are what is not given
        self.nodes(graph.node, scope)
        missing = f"node {scope.prefix!r}: its graph never defines its output"
        return [self._found(o.name, scope, f"{missing} {o.name!r}") for o in graph.output]

    def _bind_outputs(self, node: NodeProto, results: Sequence[str | None], scope: Scope, mark: Mark) -> None:
        """Enters a node's results into the scope, under the model's own names where they are new values."""
        if len(results) < len(node.output):
            missing = [o for o in node.output[len(results) :] if o]
            if missing:
                raise UnsupportedError(f"{node_label(node)}: its output {missing[0]!r} is not supported")
        renamed: dict[str, str] = {}
        label = node_label(node)
        for output, value in zip(node.output, results):
            if not output:
                continue
            if output in scope.values and not scope.prefix:
                raise ModelError(f"{label}: the value {output!r} is defined twice")
            if value is None:
                raise UnsupportedError(f"{label}: its output {output!r} is not supported")
            if value not in renamed and self.g.made_since(mark, value):
                name = self._define(output, scope)
                self.g.rename(value, name)
                renamed[value] = renamed[name] = name
            value = renamed.setdefault(value, value)
            scope.values[output] = value
            if not scope.prefix:
                self._makers[output] = label
        self.g.rename_uses(renamed, mark)

    def _outputs(self, names: Sequence[str], scope: Scope) -> tuple[str, ...]:
        """Lets every graph output be made by a node under its own name."""
        made = {o for node in self.g.nodes for o in node.outputs}
        copies: list[tuple[str, str]] = []
        aside: dict[str, str] = {}  # constants whose names graph outputs take → theirs from now on
        for name in names:
            missing = f"graph output {name!r} is not defined by any node, input or initializer"
            value = self._found(name, scope, missing)
            if value is None:
                raise ModelError(missing)
            if name in made:
                continue
            if value in self.g.small_types:
                found = self.g.small_types[value]
                raise UnsupportedError(
                    f"graph output {name!r} has the element type {found}; cast it to another"
                )
            if value == name and name not in self.g.constants:
                raise UnsupportedError(
                    f"graph output {name!r} is also a graph input; give one of them another name"
                )
            if value == name:
                aside[name] = self._set_aside(name)
            self.g.types[name] = self.g.types[value]
            copies.append((value, name))
            made.add(name)
        self.g.rename_uses(aside, Mark(0, 0))
        for value, name in copies:
            node = Node(Identity(), (aside.get(value, value),), (name,), f"Identity:{name}")
            self.g.nodes.append(node)
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            raise ModelError(f"the graph output {twice!r} stands twice; name it once")
        return tuple(names)

    def _set_aside(self, name: str) -> str:
        """Another name of the constant `name`, whose name a graph output takes."""
        self.g.begin(name)
        other = self.g.fresh("value")
        self.g.constants[other], self.g.types[other] = self.g.constants.pop(name), self.g.types[name]
        return other
