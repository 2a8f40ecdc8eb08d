"""Fusion: an anchor operator with the elementwise operators after it, maps with maps, reductions with the
maps before.

A group is one kernel, so nothing inside it touches memory twice. Groups:
    map      elementwise and data movement, in one pass over the output
    anchor   a sum of products (convolution, matrix product) or pooling window, with an elementwise epilogue
    rows     reductions (softmax, layer norm, …) with a cheap prologue and an elementwise epilogue
    opaque   a loop program of its own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..compiler.ir import scalar as s
from ..compiler.ir.expr import Stage, TensorExpr
from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.scalar import Binary, Call, Cast, Const, Load, Select, Var
from ..compiler.ir.types import F32, NARROW, TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.movement import Identity, Reshape
from ..compiler.schedule.rewrite_expr import inline
from ..compiler.templates.common import inline_cheap

MAX_NODES = 24
MAX_INPUTS = 12


@dataclass
class _Group:
    nodes: list[Node]
    kind: str
    output: str  # the only value that leaves the group, for groups that may still grow
    closed: bool = False
    costly: bool = False
    checked: bool = False  # whether it reports indices that are out of range
    position: int = 0
    shape: tuple[int, ...] = field(default=())


def fuse(graph: Graph) -> Graph:
    """Every operator with a tensor expression becomes part of a FusedOp; views and loop programs stay as
    they are.
    """
    fusion = _Fusion(graph)
    for node in graph.nodes:
        if node.outputs[0] not in fusion.group_of:  # else part of a region
            fusion.add(node)
    groups = sorted(fusion.groups, key=lambda g: g.position)
    return graph.with_nodes(_fused_node(graph, g) for g in groups)


class _Fusion:
    """The groups of a graph, which its nodes join one after the other."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.consumers = graph.consumers()
        self.order = {id(n): i for i, n in enumerate(graph.nodes)}
        self.group_of: dict[str, _Group] = {}  # value → the group that yields it
        self.groups: list[_Group] = []

    def add(self, node: Node) -> None:
        graph, kind = self.graph, classify(self.graph, node)
        group = self._joined(node, kind)
        if group is None:
            group = _Group([], kind, node.outputs[0])
            self.groups.append(group)
        if group.kind == "anchor" and kind == "elementwise":
            self._absorb_operands(group, node)
        group.nodes.append(node)
        group.output = node.outputs[0]
        group.position = self.order[id(node)]
        group.shape = graph.types[node.outputs[0]].dims
        group.closed = group.closed or kind in ("view", "opaque") or len(node.outputs) > 1
        group.costly = group.costly or _is_costly(node.op)
        group.checked = group.checked or (kind in ("map", "rows") and _has_checks(graph, node))
        self.group_of |= dict.fromkeys(node.outputs, group)
        while group.kind == "anchor" and (region := self._region(group)):
            group.nodes += region
            group.output = region[-1].outputs[0]
            group.position = self.order[id(region[-1])]
            self.group_of |= {n.outputs[0]: group for n in region}
        if kind in ("rows", "map"):
            self._absorb_prologues(group)

    def _fits(self, nodes: Sequence[Node]) -> bool:
        """Whether these are few enough for one kernel."""
        return len(nodes) <= MAX_NODES and len(_inputs(self.graph, nodes)) <= MAX_INPUTS

    def _is_sole_reader(self, value: str, node: Node) -> bool:
        return value not in self.graph.outputs and all(c is node for c in self.consumers.get(value, []))

    def _joined(self, node: Node, kind: str) -> _Group | None:
        """The group whose output this operator may be computed on, in registers: the latest that fits."""
        if kind not in ("elementwise", "map") or len(node.outputs) > 1:
            return None
        found = [
            group
            for value in node.reads
            if (group := self.group_of.get(value)) is not None and self._accepts(group, node, value, kind)
        ]
        best = max(found, key=lambda group: (group.kind == "anchor", group.position), default=None)
        if best is not None and kind == "map":
            best.kind = "map"
        return best

    def _accepts(self, group: _Group, node: Node, value: str, kind: str) -> bool:
        """Whether an operator that reads a value of the group may be computed in it."""
        graph, result = self.graph, self.graph.types[node.outputs[0]]
        if group.closed or group.output != value or not self._is_sole_reader(value, node):
            return False
        if kind == "elementwise" and group.shape != result.dims:
            return False
        if kind == "map":
            if group.kind not in ("map", "elementwise") or group.costly:
                return False
            if not _same_size(graph.types[value], result) or not _keeps_checks(graph, group.nodes, node):
                return False
        nodes = [*group.nodes, node]
        if not self._fits(nodes) or (isinstance(group.nodes[0].op, Conv) and _narrows(graph, node)):
            return False
        if group.checked and not _reads_whole(graph, node, value):
            return False
        inner = _inner_stages(graph, nodes) if group.kind == "anchor" else 0
        return inner <= 1 or inner <= _inner_stages(graph, group.nodes)

    def _region(self, group: _Group) -> list[Node]:
        """Elementwise operators that several times read the group's output, which nobody else does, up to the
        first of them that alone is read by others: x · sigmoid(x). Empty where there are none, or another
        group has some of them.
        """
        graph, consumers, order = self.graph, self.consumers, self.order
        if group.closed or len({id(n) for n in consumers.get(group.output, ())}) < 2:
            return []
        region: dict[int, Node] = {}
        inner = [group.output]
        waiting = {order[id(n)]: n for n in consumers[group.output]}
        while waiting and not any(value in graph.outputs for value in inner):
            node = waiting.pop(min(waiting))
            region[id(node)] = node
            nodes = [*group.nodes, *region.values()]
            if not self._fits(nodes) or len(node.outputs) > 1 or classify(graph, node) != "elementwise":
                return []
            if node.outputs[0] in self.group_of or graph.types[node.outputs[0]].dims != group.shape:
                return []
            if all(id(n) in region for value in inner for n in consumers[value]):
                one_pass = _inner_stages(graph, nodes) == 1  # where the result is, nothing costly twice
                return list(region.values()) if one_pass else []
            inner.append(node.outputs[0])
            waiting |= {order[id(n)]: n for n in consumers.get(inner[-1], ()) if id(n) not in region}
        return []

    def _absorb_prologues(self, group: _Group) -> None:
        """Maps that only this group reads are computed where they are read, if that is about once an
        element."""
        graph, node = self.graph, group.nodes[-1]
        result = graph.types[node.outputs[0]]
        for value in dict.fromkeys(node.reads):
            other = self.group_of.get(value)
            if other is None or other is group or other.closed or other.kind not in ("map", "elementwise"):
                continue
            if other.output != value or not self._is_sole_reader(value, node) or other.costly:
                continue
            if not _same_size(graph.types[value], result) and group.kind != "rows":
                continue
            nodes = [*other.nodes, *group.nodes]
            if not self._fits(nodes) or not _keeps_checks(graph, other.nodes, node):
                continue
            if other.checked and not _reads_whole(graph, node, value):
                continue
            group.checked = group.checked or other.checked
            group.nodes = nodes
            self._take(group, other)

    def _absorb_operands(self, group: _Group, node: Node) -> None:
        """Elementwise operators that only `node` reads, which joins the anchor's group, are computed in it:
        an operand that is dequantised, say."""
        graph = self.graph
        for value in dict.fromkeys(node.reads):
            other = self.group_of.get(value)
            if other is None or other is group or other.closed or other.kind != "elementwise" or other.costly:
                continue
            nodes = [*group.nodes, *other.nodes, node]
            here = other.output == value and self._is_sole_reader(value, node)
            if not (here and self._fits(nodes) and other.shape == group.shape):
                continue
            if _inner_stages(graph, nodes) > max(1, _inner_stages(graph, [*group.nodes, node])):
                continue
            group.nodes += other.nodes
            self._take(group, other)

    def _take(self, group: _Group, other: _Group) -> None:
        """What the other group yields the group does from now on."""
        self.group_of |= {o: group for n in other.nodes for o in n.outputs}
        self.groups.remove(other)


def classify(graph: Graph, node: Node) -> str:
    """view, opaque, anchor, rows, map or elementwise (a map that reads its inputs where it writes)."""
    if isinstance(node.op, (Reshape, Identity)):
        return "view"
    if not node.op.has("compute"):
        return "opaque"
    return kind_of(expression(node.op, graph.input_types(node)))


def kind_of(expr: TensorExpr) -> str:
    reduces = [st for st in expr.stages if st.reduce]
    if not reduces:
        return "elementwise" if all(map(_is_elementwise, expr.stages)) else "map"
    if len(reduces) == 1 and (is_product(reduces[0]) or is_window(reduces[0])):
        return "anchor"
    return "rows"


def _is_elementwise(st: Stage) -> bool:
    """Whether every load uses the stage's own axes in order (trailing ones, or 0 where it broadcasts), and
    nothing else asks for the place."""
    names = [a.name for a in st.axes]
    if s.variables(s.transform(st.body, lambda e: s.const(0, e.type) if isinstance(e, Load) else None)):
        return False
    for load in s.loads(st.body):
        tail = names[len(names) - len(load.index) :]
        if len(load.index) > len(names):
            return False
        for e, name in zip(load.index, tail):
            if not (e == Var(name) or (isinstance(e, s.Const) and e.value == 0)):
                return False
    return True


def is_product(st: Stage) -> bool:
    """Σ a·b, of numbers or of words of bytes, with two reads (each perhaps cast, guarded or unpacked)."""
    if st.reduce is None or st.reduce.op != "sum":
        return False
    of_words = isinstance(st.body, Call) and st.body.op in s.DOTS
    of_numbers = isinstance(st.body, Binary) and st.body.op == "mul"
    return (of_words or of_numbers) and all(_read(side) is not None for side in s.children(st.body))


def _read(e: s.Expr) -> Load | None:
    """What is read, be it cast, guarded or unpacked: bits of it, times a scale, plus a shift."""
    while not isinstance(e, Load):
        match e:
            case Cast(value):
                e = value
            case Select(_, then):
                e = then
            case Binary("add", Binary("mul", number, Load()), Load() | Binary("mul", Load(), Const())):
                e = number
            case Binary("and" | "shr", number):
                e = number
            case _:
                return None
    return e


def is_window(st: Stage) -> bool:
    """A reduction whose read slides: an index mixes an output axis with a reduction axis."""
    if st.reduce is None:
        return False
    own, over = {a.name for a in st.axes}, {a.name for a in st.reduce.axes}
    for load in s.loads(st.body):
        for e in load.index:
            names = s.variables(e)
            if names & own and names & over:
                return True
    return False


def _is_costly(op: Op) -> bool:
    fn = getattr(op, "fn", "")
    return fn in {"exp", "log", "tanh", "sigmoid", "erf", "pow", "sin", "cos"} or not op.has("compute")


def _inner_stages(graph: Graph, nodes: list[Node]) -> int:
    """That are kept for the last one: the anchor's, and what is costly and would be computed twice."""
    expr = inline_cheap(_expression(graph, nodes, "anchor"))
    return sum(1 for st in expr.stages if st.name not in expr.outputs)


def _keeps_checks(graph: Graph, before: list[Node], node: Node) -> bool:
    """Whether an operator that checks indices still checks all of them where it is computed with those before
    it: one that repeats its only row reads that one, whatever the index."""
    if not _has_checks(graph, node):
        return True
    return _checks(graph, [*before, node]) >= _checks(graph, [node]) + _checks(graph, before)


def _has_checks(graph: Graph, node: Node) -> bool:
    if not node.op.has("compute"):
        return False
    return any(s.checks(st.body) for st in expression(node.op, graph.input_types(node)).stages)


def _reads_whole(graph: Graph, node: Node, value: str) -> bool:
    """Whether an operator reads every element, whatever the others are: only then are all indices checked
    that the value was picked by, once it is computed where it is read."""
    expr = expression(node.op, graph.input_types(node))
    names = {name for (name, _), read in zip(expr.params, node.reads) if read == value}
    dims = graph.types[value].dims
    return any(
        load.tensor in names and _covers(load.index, dims, {a.name: a.extent for a in st.all_axes})
        for st in expr.stages
        for load in _unconditional(st.body)
    )


def _unconditional(e: s.Expr) -> Iterator[Load]:
    """Loads that do not depend on a condition."""
    if isinstance(e, Load):
        yield e
    for child in (e.cond,) if isinstance(e, Select) else s.children(e):
        yield from _unconditional(child)


def _covers(index: Sequence[s.Expr], dims: Sequence[int], extents: Mapping[str, int]) -> bool:
    axes = [e.name for e in index if isinstance(e, Var)]
    return len(axes) == len(set(axes)) and all(
        (isinstance(e, Var) and extents.get(e.name) == d) or (d == 1 and e == Const(0, e.dtype))
        for e, d in zip(index, dims, strict=True)
    )


def _checks(graph: Graph, nodes: list[Node]) -> int:
    """How many different indices the last one's result checks, if nothing is kept on the way."""
    if not all(node.op.has("compute") for node in nodes):
        return 0
    expr = inline(_expression(graph, nodes, "map"), lambda st: True)
    return len(
        {x for st in expr.stages for x in s.walk(st.body) if isinstance(x, Call) and x.op == "checked"}
    )


def _expression(graph: Graph, nodes: list[Node], kind: str) -> TensorExpr:
    op = _fused_node(graph, _Group(nodes, kind, nodes[-1].outputs[0])).op
    return expression(op, tuple(graph.types[value] for value in _inputs(graph, nodes)))


def _narrows(graph: Graph, node: Node) -> bool:
    """Whether f32 comes out in 16 bits, which no algorithm of convolutions writes."""
    (result,) = graph.output_types(node)
    return graph.types[node.reads[0]].dtype is F32 and result.dtype in NARROW


def _same_size(a: TensorType, b: TensorType) -> bool:
    """About: neither has more than twice the elements of the other."""
    return a.size <= b.size * 2 and b.size <= a.size * 2


def _inputs(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    made = {o for n in nodes for o in n.outputs}
    return [
        i
        for i in dict.fromkeys(i for n in nodes for i in n.reads)
        if i not in made and not is_inner(graph, i)
    ]


def is_inner(graph: Graph, value: str) -> bool:
    """One-element constants become part of the code."""
    return value in graph.constants and graph.constants[value].size == 1


def _fused_node(graph: Graph, group: _Group) -> Node:
    if group.kind in ("view", "opaque"):
        return group.nodes[0]
    nodes = group.nodes
    inputs = _inputs(graph, nodes)
    outputs = group.nodes[-1].outputs
    values = {v for n in nodes for v in (*n.reads, *n.outputs)}
    types = {v: TensorType(graph.types[v].dtype, graph.types[v].shape) for v in values}
    constants = {v: graph.constants[v] for v in values if is_inner(graph, v)}
    name = "+".join(dict.fromkeys(n.name for n in nodes))
    inside = Graph(name, tuple(inputs), outputs, tuple(nodes), types, constants)
    return Node(FusedOp(inside), tuple(inputs), outputs, name)
