"""Import of reductions, ArgMax and ArgMin, and the softmax family."""

from __future__ import annotations

from collections.abc import Callable

from ...compiler.ops.base import Op
from ...compiler.ops.elementwise import Cast
from ...compiler.ops.movement import Reshape
from ...compiler.ops.reduction import REDUCTIONS, ArgReduce, Hardmax, Reduce, Softmax
from ...compiler.ops.shapes import axis_of, size_of
from .registry import NodeContext, onnx
from .rules_movement import axes_argument

REDUCE_NAMES = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceLogSum": "log_sum", "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min", "ReduceProd": "prod", "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}  # fmt: skip


def _reduce_rule(fn: str):
    def rule(c: NodeContext, x: str, axes: str | None = None):
        type = c.type(x)
        given = axes_argument(c, axes)
        if not given and c.attr("noop_with_empty_axes", 0):
            given = ()
        elif not given:
            given = tuple(range(type.rank))
        op = Reduce(fn, given, bool(c.attr("keepdims", 1)))
        if (
            type.dtype.is_integer and REDUCTIONS[fn].kinds == "float"
        ):  # computed exactly enough, then truncated
            return c.emit(Cast(type.dtype.name), c.one(op, c.one(Cast("f64"), x)))
        return c.emit(op, x)

    return rule


def _arg_rule(fn: str):
    def rule(c: NodeContext, x: str):
        keepdims, last = bool(c.attr("keepdims", 1)), bool(c.attr("select_last_index", 0))
        return c.emit(ArgReduce(fn, axis_of(c.attr("axis", 0), c.type(x).rank), keepdims, last), x)

    return rule


for _name, _fn in REDUCE_NAMES.items():
    onnx(_name)(_reduce_rule(_fn))
onnx("ArgMax")(_arg_rule("argmax"))
onnx("ArgMin")(_arg_rule("argmin"))


SOFTMAX_FAMILY = {
    "Softmax": lambda axis: Softmax(axis),
    "LogSoftmax": lambda axis: Softmax(axis, log=True),
    "Hardmax": lambda axis: Hardmax(axis),
}


def _flattened_rule(name: str):
    """Before opset 13: over all axes from `axis` on, taken as one."""

    def rule(c: NodeContext, x: str):
        axis, rank = c.attr("axis", 1), c.type(x).rank
        return softmax_of_flat(c, SOFTMAX_FAMILY[name], x, axis if axis == rank else axis_of(axis, rank))

    return rule


def softmax_of_flat(c: NodeContext, op: Callable[[int], Op], x: str, axis: int) -> str:
    """`op(axis)` of x as a matrix: the axes before `axis`, those from it on."""
    dims = c.type(x).dims
    if axis == len(dims) - 1:
        return c.one(op(axis), x)
    flat = c.one(Reshape((size_of(dims[:axis]), size_of(dims[axis:]))), x)
    return c.one(Reshape(dims), c.one(op(1), flat))


def _axis_rule(name: str):
    def rule(c: NodeContext, x: str):
        return c.emit(SOFTMAX_FAMILY[name](axis_of(c.attr("axis", -1), c.type(x).rank)), x)

    return rule


for _name in SOFTMAX_FAMILY:
    onnx(_name)(_flattened_rule(_name))
    onnx(_name, since=13)(_axis_rule(_name))
