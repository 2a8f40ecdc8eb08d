"""What a cost model needs to know of a scheduled loop program, taken apart into numbers.

A *sketch* gives every number a key of its own: of each loop its iterations and its kind, of each pair of
loops which is the outer one, of each nest what it stores and how the indices of its heaviest statement depend
on each loop. A number is local: it depends on few of the answers that made the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, takewhile

import numpy as np

from ..compiler.ir import affine
from ..compiler.ir import scalar as s
from ..compiler.ir.affine import Range
from ..compiler.ir.loops import Alloc, Body, Buffer, For, If, Intrinsic, Prefetch, Program, Store
from ..compiler.ir.scalar import Binary, Const, Expr, Load, Select, Var

BUFFERS, DIMS, NESTS = 5, 8, 3
KINDS = ("serial", "parallel", "unroll", "vector")
ROOT = ""  # the nest of statements outside of all loops

Key = tuple[str | int, ...]
Sketch = Mapping[Key, float]
"""Keys, where a nest is what stands immediately in one loop:

    (extent, loop)                  iterations
    (kind, loop)                    of more than one: place in KINDS; parallel ones count as serial
    (above, a, b)                   1 if a is around b, 0 if b is around a, for a < b around one nest
    (there, nest)                   1
    (around, nest, loop)            1 for every loop
    (dealt, nest)                   how many of the outermost loops are parallel
    (stores, nest) (operations, nest) (guarded, nest)            of the statements, counted once each
    (prefetches, nest) (nearest, nest) (farthest, nest)          how many, and bytes that they are ahead
    (itemsize, nest, b) (limit, nest, b, dim) (stride, nest, b, dim) (move, nest, b, dim, loop)
        of the heaviest nests: the buffers of their heaviest statement, what is stored first, then the
        largest; the values that an index may have, bytes from one to the next, how far it moves with a loop
    (register, buffer) (scratch, buffer) (params,) (temps,)       bytes
    (steps,) (threads,)
"""


@dataclass
class _Node:
    """A loop, and what stands immediately in it."""

    var: str
    extent: int
    kind: str
    parent: _Node | None
    name: str = ROOT
    nest: str = ROOT  # the name of what stands immediately in it
    inside: list[_Node] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)  # of each store
    guarded: int = 0
    prefetches: list[Prefetch] = field(default_factory=list)

    @cached_property
    def loops(self) -> list[_Node]:
        """From the outside in."""
        return [] if self.parent is None else [*self.parent.loops, self]

    def around(self) -> Iterator[_Node]:
        """It, and the loops in it."""
        yield self
        for inner in self.inside:
            yield from inner.around()

    @cached_property
    def does(self) -> str:
        """What is written, read and prefetched."""
        stored = {_stem(st.buffer) for st in self.stores}
        loaded = {_stem(ld.tensor) for ld in s.loads(*(st.value for st in self.stores))}
        ahead = {_stem(st.buffer) for st in self.prefetches} if not self.stores else set()
        return "=".join(",".join(sorted(names)) for names in (stored, loaded, ahead) if names)

    @property
    def work(self) -> float:
        """Operations of its statements, a vector counting once."""
        runs = float(np.prod([lp.extent for lp in self.loops if lp.kind != "vector"], dtype=float))
        return runs * sum(self.operations)


@dataclass
class _Reader:
    """Walks a program."""

    ranges: dict[str, Range]
    nodes: list[_Node] = field(default_factory=list)
    allocated: list[Buffer] = field(default_factory=list)

    def read(self, body: Body, node: _Node, guarded: bool = False) -> None:
        for st in body:
            match st:
                case For():
                    self._loop(st, node, guarded)
                case If(then=then, other=other):
                    self.read(then, node, True)
                    self.read(other, node, True)
                case Alloc(buffer=buffer, body=inner):
                    self.allocated.append(buffer)
                    self.read(inner, node, guarded)
                case Intrinsic(body=inner):
                    self.read(inner, node, guarded)
                case Store():
                    node.stores.append(st)
                    node.operations.append(_operations(st))
                    node.guarded += guarded
                case Prefetch():
                    node.prefetches.append(st)

    def _loop(self, st: For, parent: _Node, guarded: bool) -> None:
        first, last = affine.bounds(st.begin, self.ranges)[0], affine.bounds(st.end, self.ranges)[1]
        extent = st.extent
        if extent is None:
            extent = max(1, min(last - first, affine.bounds(st.end - st.begin, self.ranges)[1]))
        if extent == 0:
            return
        self.ranges[st.var] = (first, max(first, last - 1))
        kind = st.kind if st.kind in KINDS else "parallel"
        node = _Node(st.var, extent, kind, parent)
        parent.inside.append(node)
        self.nodes.append(node)
        self.read(st.body, node, guarded)


def sketch(program: Program, threads: int) -> Sketch:
    """Of a program as `lower.scheduled` gives it."""
    root = _Node(ROOT, 1, "serial", None)
    reader = _Reader({"worker": (0, threads - 1), "workers": (threads, threads)}, [root])
    reader.read(program.body, root)
    _name(root, "", Counter())
    buffers = {b.name: b for b in (*program.params, *program.temps, *reader.allocated)}
    numbers: dict[Key, float] = {
        ("steps",): len(program.body),
        ("threads",): threads,
        ("params",): sum(b.nbytes for b in program.params),
        ("temps",): sum(b.nbytes for b in program.temps),
    }
    for b in reader.allocated:
        if b.scope in ("register", "scratch"):
            key = (b.scope, _stem(b.name))
            numbers[key] = numbers.get(key, 0) + b.nbytes
    for node in reader.nodes:
        numbers.update(_of_loop(node))
        if node.stores or node.prefetches:
            numbers.update(_of_nest(node, buffers))
    nests = sorted((n for n in reader.nodes if n.stores), key=lambda n: (-n.work, n.nest))
    for nest in nests[:NESTS]:
        numbers.update(_of_accesses(nest, buffers))
    return numbers


def _name(node: _Node, branch: str, seen: Counter[str]) -> None:
    """Gives loops and nests names that other parts of the program have no influence on.

    A loop is named after its variable and what the only nest in it does, a nest after what it does. `branch`
    says which one of equal loops they stand in.
    """
    equals: Counter[str] = Counter()
    for inner in node.inside:
        nests = [nest for nest in inner.around() if nest.stores]
        name = f"{inner.var} {nests[0].does}" if len(nests) == 1 else inner.var
        path = f"{branch}{equals[name]}/{inner.var}/" if equals[name] else branch
        equals[name] += 1
        inner.name = _once(path + name, seen)
        if inner.stores or inner.prefetches:
            inner.nest = _once(path + inner.does, seen)
        _name(inner, path, seen)


def _once(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return f"{name}#{seen[name]}" if seen[name] > 1 else name


def _stem(buffer: str) -> str:
    """The name without the number that tells it from its equals."""
    return buffer.rstrip("0123456789")


def _of_loop(node: _Node) -> dict[Key, float]:
    found: dict[Key, float] = {("extent", node.name): node.extent}
    if node.extent > 1:
        found["kind", node.name] = KINDS.index(node.kind if node.kind != "parallel" else "serial")
    return found


def _of_nest(nest: _Node, buffers: dict[str, Buffer]) -> dict[Key, float]:
    name = nest.nest
    found: dict[Key, float] = {("there", name): 1}
    found.update((("around", name, lp.name), 1) for lp in nest.loops)
    for outer, inner in combinations([lp.name for lp in nest.loops], 2):
        found["above", min(outer, inner), max(outer, inner)] = outer < inner
    found["dealt", name] = len(list(takewhile(lambda lp: lp.kind == "parallel", nest.loops)))
    found["stores", name] = len(nest.stores)
    found["operations", name] = sum(nest.operations)
    found["guarded", name] = nest.guarded
    found["prefetches", name] = len(nest.prefetches)
    if nest.prefetches:
        ahead = [d for st in nest.prefetches if (d := _distance(st, buffers)) > 0]
        found["nearest", name] = min(ahead, default=0)
        found["farthest", name] = max(ahead, default=0)
    return found


def _operations(store: Store) -> int:
    """Of the value and the store itself; indices and the conditions of guards are not counted."""
    stack, seen = [store.value], set()
    while stack:
        e = stack.pop()
        if isinstance(e, (Load, Var, Const)) or id(e) in seen:
            continue
        seen.add(id(e))
        stack += (e.then, e.other) if isinstance(e, Select) else s.children(e)
    return 1 + len(seen)


def _distance(st: Prefetch, buffers: dict[str, Buffer]) -> float:
    """Bytes by which a prefetch's address is fixed to be ahead."""
    buffer = buffers[st.buffer]
    offsets = (affine.linear(e).offset * stride for e, stride in zip(st.index, buffer.strides))
    return abs(sum(offsets)) * buffer.dtype.bytes


def _of_accesses(nest: _Node, buffers: dict[str, Buffer]) -> dict[Key, float]:
    main = nest.stores[int(np.argmax(nest.operations))]
    stored = Load(main.buffer, main.index, buffers[main.buffer].dtype)
    loads = dict.fromkeys(s.loads(main.value))
    rest = [ld for ld in loads if (ld.tensor, ld.index) != (stored.tensor, stored.index)]
    rest.sort(key=lambda ld: -buffers[ld.tensor].nbytes)
    nodes = {lp.var: lp.name for lp in nest.loops}
    found: dict[Key, float] = {}
    for b, access in enumerate([stored, *rest][:BUFFERS]):
        found.update(_of_access((nest.nest, b), access, buffers[access.tensor], nodes))
    return found


def _of_access(where: Key, access: Load, buffer: Buffer, nodes: dict[str, str]) -> dict[Key, float]:
    found: dict[Key, float] = {("itemsize", *where): buffer.dtype.bytes}
    dims = list(zip(access.index, buffer.shape, buffer.strides))[-DIMS:]
    for d, (index, extent, stride) in enumerate(dims):
        moves, values = _moves(index)
        found[("limit", *where, d)] = min(max(extent, 1), values)
        found[("stride", *where, d)] = stride * buffer.dtype.bytes
        for var, step in moves.items():
            if var in nodes and step:
                found[("move", *where, d, nodes[var])] = step
    return found


def _moves(index: Expr) -> tuple[dict[str, float], float]:
    """How far an index moves with each variable, about, and how many values it has at most."""
    found: dict[str, float] = {}
    form, values = affine.linear(index), np.inf
    for atom, scale in form.terms:
        moves, few = _atom(atom)
        if len(form.terms) == 1:
            values = few
        for var, coefficient in moves.items():
            found[var] = found.get(var, 0.0) + scale * coefficient
    return found, values


def _atom(e: Expr) -> tuple[dict[str, float], float]:
    match e:
        case Var(name=name):
            return {name: 1.0}, np.inf
        case Binary(op="floordiv", a=a, b=Const(value=d)) if d:
            moves, values = _moves(a)
            return {var: c / d for var, c in moves.items()}, -(-values // d)
        case Binary(op="mod", a=a, b=Const(value=d)) if d:
            moves, values = _moves(a)
            return moves, min(values, float(d))
        case Select(then=a, other=b):
            first, second = _moves(a), _moves(b)
            return first if len(first[0]) >= len(second[0]) else second
    return dict.fromkeys(sorted(s.variables(e)), 1.0), np.inf
