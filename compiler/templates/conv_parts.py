"""What convolution algorithms share that build their loop programs by hand: sizes, operands in their layouts,
the epilogue, and a register-tiled matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...errors import InternalError
from ..ir import scalar as s
from ..ir.expr import Axis, Stage, TensorExpr
from ..ir.loops import Alloc, Body, Buffer, Stmt, Store, loop, substitute
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, I32, DType, Layout
from ..kernel_task import KernelTask
from ..ops.byte_products import DotMatMul
from ..ops.conv import Conv
from ..ops.fused import FusedOp, expression
from ..ops.matmul import MatMul
from ..schedule.relayout import physical_index, relayout
from .common import inline_cheap

LINE = 16  # f32 in a cache line


@dataclass(frozen=True)
class Geometry:
    """Sizes of one two-dimensional convolution; channels of one group."""

    batch: int
    group: int
    channels: int
    out_channels: int
    size: tuple[int, int]  # height and width of the input
    out: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]  # top and left

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        return self.out[0] * self.out[1]

    @property
    def pointwise(self) -> bool:
        """A plain matrix product."""
        return self.taps == 1 and self.strides == (1, 1) and self.size == self.out

    def guarded(self, value: Expr, h: Expr, w: Expr) -> Expr:
        """An element of the input, zero outside of the image."""
        inside = s.both(s.within(h, self.size[0]), s.within(w, self.size[1]))
        return s.select(inside, value, s.const(0.0, F32))


def convolution(op: object) -> Geometry | None:
    """That of an f32 convolution followed by nothing but elementwise operators; None if there is more."""
    g = _geometry(op, F32)
    return g if g is not None and isinstance(op, FusedOp) and _epilogue(op, F32) else None


def word_convolution(op: object) -> Geometry | None:
    """The same of words of bytes, whose channels are words; what follows may have any types."""
    g = _geometry(op, I32)
    return g if g is not None and isinstance(op, FusedOp) and _epilogue(op, I32) else None


def word_product(op: object) -> Geometry | None:
    """That of a product of matrices of words with one on the right, as a convolution of one row of pixels."""
    return _product(op, DotMatMul, I32)


def matrix_product(op: object) -> Geometry | None:
    """The same of matrices in f32."""
    return _product(op, MatMul, F32)


def _product(op: object, kind: type[MatMul], dtype: DType) -> Geometry | None:
    if not isinstance(op, FusedOp):
        return None
    node, types = op.graph.nodes[0], op.graph.types
    if not isinstance(node.op, kind) or node.op.trans_a:
        return None
    data, weights = (v or "" for v in node.inputs[:2])
    x, w, y = types[data], types[weights], types[node.outputs[0]]
    whole = data in op.graph.inputs and weights in op.graph.inputs and data != weights
    if w.rank != 2 or x.dtype is not dtype or not whole or 0 in (x.size, w.size, y.size):
        return None
    if not _epilogue(op, dtype):
        return None
    one, rows = (1, 1), (1, y.size // y.dims[-1])
    return Geometry(1, 1, x.dims[-1], y.dims[-1], rows, rows, one, one, one, (0, 0))


def geometry(op: object) -> Geometry:
    """That of the convolution of an operator that fits."""
    g = _geometry(op, F32)
    if g is None:
        raise InternalError(f"{op} begins with no two-dimensional convolution in f32")
    return g


def _geometry(op: object, dtype: DType) -> Geometry | None:
    """That of the convolution that a fused operator begins with; None if it is of another kind or type."""
    if not isinstance(op, FusedOp) or not isinstance(op.graph.nodes[0].op, Conv):
        return None
    node, types = op.graph.nodes[0], op.graph.types
    conv, data, weights = node.op, node.inputs[0] or "", node.inputs[1] or ""
    assert isinstance(conv, Conv)
    x, w, y = types[data], types[weights], types[node.outputs[0]]
    whole = data in op.graph.inputs and weights in op.graph.inputs and data != weights
    if x.rank != 4 or not whole or any(t.dtype is not dtype or t.size == 0 for t in (x, w, y)):
        return None
    return Geometry(
        x.dims[0],
        conv.group,
        w.dims[1],
        w.dims[0] // conv.group,
        _pair(x.dims[2:]),
        _pair(y.dims[2:]),
        _pair(w.dims[2:]),
        _pair(conv.strides),
        _pair(conv.dilations),
        _pair(conv.pads[:2]),
    )


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _epilogue(op: FusedOp, dtype: DType) -> bool:
    """Whether all that follows the convolution is elementwise at the position of its result, and of its type
    if that is f32."""
    expr = with_copy(inline_cheap(expression(op, tuple(op.graph.types[i] for i in op.graph.inputs))))
    sums = [st for st in expr.stages if st.reduce]
    outs = [st for st in expr.stages if not st.reduce]
    if len(sums) != 1 or sums[0].dtype is not dtype:
        return False
    same = all(
        st.name in expr.outputs and st.shape == sums[0].shape and (st.dtype is F32 or dtype is not F32)
        for st in outs
    )
    return same and all(
        e == Var(a.name) or a.extent == 1
        for st in outs
        for ld in s.loads(st.body)
        if ld.tensor == sums[0].name
        for e, a in zip(ld.index, st.axes)
    )


def weights_position(op: FusedOp) -> int:
    """Of the convolution's weights among the operands."""
    return op.graph.inputs.index(op.graph.nodes[0].inputs[1] or "")


def with_copy(expr: TensorExpr) -> TensorExpr:
    """Where the sum itself is an output, a copy of it is."""
    stages: list[Stage] = []
    for st in expr.stages:
        if st.reduce is None or st.name not in expr.outputs:
            stages.append(st)
            continue
        inner = replace(st, name=f"{st.name}_sum")
        index = tuple(Var(a.name) for a in st.axes)
        stages += [inner, Stage(st.name, st.dtype, st.axes, Load(inner.name, index, st.dtype))]
    return replace(expr, stages=tuple(stages))


# --- operands ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """The buffers of a task whose weights were transformed, and the stages that its sums end in.

    `reads` and `writes` are the layouts of the image and of the result. If `flat`, both are plain and so is
    every operand of the epilogue, and (height, width) is one axis of all of them.
    """

    data: Buffer
    weights: Buffer
    params: tuple[Buffer, ...]
    outs: tuple[Stage, ...]
    sums: str
    reads: Layout | None
    writes: Layout | None
    width: int = 0  # of the image, if flat

    def read(self, n: Expr, c: Expr, h: Expr, w: Expr) -> Load:
        """An element of the image by its logical index."""
        index = (n, c, h * self.width + w) if self.width else (n, c, h, w)
        place = physical_index(self.reads, index) if self.reads else index
        return Load(self.data.name, place, self.data.dtype)

    def write(self, index: tuple[Expr, ...], value: Load) -> Body:
        """The epilogue of one sum, stored at its logical index."""
        place = physical_index(self.writes, index) if self.writes else index
        return tuple(self._store(st, place, value) for st in self.outs)

    def written_channels(self, channels: int) -> int:
        """Of so many those that have a place in the result, a last block's padding too."""
        block = self.writes.block_of(1) if self.writes else 1
        return -(-channels // block) * block

    def _store(self, st: Stage, place: tuple[Expr, ...], value: Load) -> Stmt:
        def read(e: Expr) -> Expr | None:
            return value if isinstance(e, Load) and e.tensor == self.sums else None

        at = {a.name: e for a, e in zip(st.axes, place)}
        return Store(st.name, place, s.substitute(s.transform(st.body, read), at))


def operands(task: KernelTask, flat: bool = False) -> Operands:
    assert isinstance(task.op, FusedOp) and task.expr is not None
    expr = with_copy(inline_cheap(task.expr))
    names = [name for name, _ in expr.params]
    inside = list(task.op.graph.inputs)
    data = names[inside.index(task.op.graph.nodes[0].inputs[0] or "")]
    weights = names[weights_position(task.op)]
    sums = next(st for st in expr.stages if st.reduce)
    layouts = {name: layout for name, layout in task.layouts if name != weights}
    reads, writes = layouts.get(data), layouts.get(expr.outputs[0])
    if writes is not None:
        layouts[sums.name] = writes
    physical = relayout(expr, layouts)
    outs = tuple(st for st in physical.stages if st.name in physical.outputs)
    shapes = {name: type.dims for name, type in physical.params}
    packed = task.types[names.index(weights)]
    assert packed is not None
    shapes[weights] = packed.dims
    width = shapes[data][3] if flat else 0
    if flat:
        outs, shapes = _flattened(outs, shapes, data)
    buffers = [Buffer(name, type.dtype, shapes[name]) for name, type in physical.params]
    by_name = {b.name: b for b in buffers}
    results = [Buffer(st.name, st.dtype, st.shape) for st in outs]
    return Operands(
        by_name[data], by_name[weights], (*buffers, *results), outs, sums.name, reads, writes, width
    )


def row_of_matrix(o: Operands, row: Expr) -> tuple[Expr, ...]:
    """Index of a row of all matrices of the result: by matrix, and within it."""
    index: list[Expr] = []
    for extent in reversed(o.outs[0].shape[1:-1]):
        index.append(s.binary("mod", row, extent))
        row = s.binary("floordiv", row, extent)
    return (row, *reversed(index))


def flattens(op: FusedOp) -> bool:
    """Whether (height, width) can be one axis of all operands of the epilogue."""
    expr = with_copy(inline_cheap(expression(op, tuple(op.graph.types[i] for i in op.graph.inputs))))
    shapes = {name: type.dims for name, type in expr.params}
    return all(
        _merged(ld, shapes[ld.tensor], st) is not None
        for st in map(_at_origin, expr.stages)
        if not st.reduce
        for ld in s.loads(st.body)
        if ld.tensor in shapes
    )


def _at_origin(st: Stage) -> Stage:
    """A stage that names no spatial axis of one element."""
    zeros: dict[str, Expr] = {a.name: s.const(0) for a in st.axes[2:] if a.extent == 1}
    return replace(st, body=s.substitute(st.body, zeros)) if zeros else st


def _merged(load: Load, shape: tuple[int, ...], st: Stage) -> Load | None:
    """x[…, h, w] → x[…, hw]; a load that depends on neither stays; None for others."""
    spatial = {a.name for a in st.axes[2:]}
    if not spatial & s.variables(load):
        return load
    here = all(
        e == Var(a.name) or (a.extent == 1 and isinstance(e, s.Const))
        for e, a in zip(load.index[-2:], st.axes[2:])
    )
    rest = not any(spatial & s.variables(e) for e in load.index[:-2])
    if len(shape) < 2 or shape[-2:] != st.shape[2:] or not here or not rest:
        return None
    return Load(load.tensor, (*load.index[:-2], Var("hw")), load.type)


def _flattened(
    outs: tuple[Stage, ...], shapes: Mapping[str, tuple[int, ...]], data: str
) -> tuple[tuple[Stage, ...], dict[str, tuple[int, ...]]]:
    """Stages over (n, c, hw) and the shapes of params that they then read."""
    flat = dict(shapes)
    flat[data] = (*shapes[data][:2], shapes[data][2] * shapes[data][3])
    stages = []
    for st in map(_at_origin, outs):
        axes = (*st.axes[:2], Axis("hw", st.shape[2] * st.shape[3]))

        def merge(e: Expr, st: Stage = st, axes: tuple[Axis, ...] = axes) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e.tensor not in shapes:
                return Load(e.tensor, tuple(Var(a.name) for a in axes), e.type)
            merged = _merged(e, shapes[e.tensor], st)
            if merged is None:
                raise InternalError(f"{e.tensor} is read at {s.text(e)}: height and width are not one axis")
            if merged is e and e.tensor == data:  # of one pixel, for all of a larger result
                row, column = e.index[-2:]
                return Load(data, (*e.index[:-2], row * shapes[data][3] + column), e.type)
            if merged is not e and e.tensor != data:
                flat[e.tensor] = (*shapes[e.tensor][:-2], st.shape[2] * st.shape[3])
            return merged

        stages.append(Stage(st.name, st.dtype, axes, s.transform(st.body, merge)))
    return tuple(stages), flat


# --- matrix product ---------------------------------------------------------------------------------------

ROW, VECTOR, LANE, DEPTH = Var("ri"), Var("vi"), Var("lane"), Var("k")
MOST_STEPS = 4  # of the depth in a turn of a tile's loop; short sums gain 1 to 2 %


def steps_of(depth: int) -> int:
    """How many steps of the depth one turn takes."""
    return max(n for n in range(1, MOST_STEPS + 1) if depth % n == 0)


def tile_product(
    rows: int,
    vectors: int,
    lanes: int,
    depth: int,
    factor: Expr,
    vector: Expr,
    finish: Callable[[Load], Body],
    ahead: Body = (),
    together: int = 0,
) -> Stmt:
    """acc[ROW, VECTOR, LANE] = Σ DEPTH factor(ROW, DEPTH) · vector(VECTOR, LANE, DEPTH), in registers.

    `finish` stores a vector of sums; one turn of the loop over the depth takes `together` steps (by default
    `steps_of` the depth), and `ahead` stands in each, DEPTH being its first.
    """
    steps = together or steps_of(depth)
    acc = Buffer("tile_acc", F32, (rows, vectors, lanes), "register")
    here = Load("tile_acc", (ROW, VECTOR, LANE), F32)

    def over(*body: Stmt) -> Stmt:
        inner = loop("vi", vectors, loop("lane", lanes, *body, kind="vector"), kind="unroll")
        return loop("ri", rows, inner, kind="unroll")

    step = over(Store("tile_acc", here.index, here + factor * vector))
    turn = loop("ki", steps, *substitute((step,), {"k": DEPTH * steps + Var("ki")}), kind="unroll")
    before = substitute(ahead, {"k": DEPTH * steps})
    return Alloc(
        acc,
        (
            over(Store("tile_acc", here.index, s.const(0.0, F32))),
            loop("k", depth // steps, turn, *before),
            over(*finish(here)),
        ),
    )


def odd_lines(elements: int) -> int:
    """Elements of a row padded to an odd number of cache lines: neighbours fall into different sets."""
    return (-(-elements // LINE) | 1) * LINE
