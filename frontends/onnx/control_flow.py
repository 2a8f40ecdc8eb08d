"""Control flow whose course is known when compiling: the branch taken is inlined, iterations are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import AttributeProto, GraphProto, ValueInfoProto

from ...compiler.ops.movement import Concat, Reshape, Slice
from ...errors import ModelError
from .interface import declared_type, fed_inputs
from .registry import NodeContext

if TYPE_CHECKING:
    from .importer import Importer, Scope

MAX_ITERATIONS = 2048
"""A longer loop is refused: its unrolled program would be of no use."""


def _graph(
    c: NodeContext, name: str, inputs: int, outputs: int = 0
) -> tuple[GraphProto, Sequence[ValueInfoProto]]:
    """A graph in an attribute, and the inputs that it is given: initializers are none, which they had to be,
    too, up to version 3 of the format."""
    for a in c.node.attribute:
        if a.name == name and a.type == AttributeProto.GRAPH:
            given: Sequence[ValueInfoProto] = a.g.input
            if len(given) != inputs:
                c.g.count(len(given) + len(a.g.initializer))
                given = fed_inputs(a.g)
            if len(given) != inputs or len(a.g.output) < outputs:
                raise ModelError(
                    f"{c.label}: its {name} has {len(given)} inputs and {len(a.g.output)} outputs, "
                    f"expected {inputs} and at least {outputs}"
                )
            return a.g, given
    raise ModelError(f"{c.label}: attribute {name!r} is missing")


def _one(c: NodeContext, value: str | None, what: str) -> bool | int:
    array = c.value(value, what)
    if array.size != 1:
        raise ModelError(f"{c.label}: its {what} has {array.size} elements, expected one")
    return array.reshape(()).item()


def _declared_rank(info: ValueInfoProto) -> int:
    """Of one number, which some models keep in a tensor of one axis."""
    return min(1, len(info.type.tensor_type.shape.dim))


def _if(importer: Importer, c: NodeContext, scope: Scope) -> Sequence[str | None]:
    taken = "then_branch" if _one(c, c.inputs[0], "condition") else "else_branch"
    graph, _ = _graph(c, taken, 0)
    return importer.subgraph(graph, scope.inner(c.g.node_name))


def _loop(importer: Importer, c: NodeContext, scope: Scope) -> Sequence[str | None]:
    """The body's condition counts even where the loop has none, as in ONNX's reference and onnxruntime."""
    name, carried = c.g.node_name, list(c.inputs[2:])
    body, inputs = _graph(c, "body", 2 + len(carried), 1 + len(carried))
    names = [info.name for info in inputs]
    limit = None if c.inputs[0] is None else _one(c, c.inputs[0], "trip count")
    condition = c.inputs[1] if len(c.inputs) > 1 else None
    scanned: list[list[str | None]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    ranks = [_declared_rank(info) for info in inputs[:2]]
    while (limit is None or step < limit) and (condition is None or _one(c, condition, "condition")):
        _check_iterations(c, step + 1)
        importer.g.begin(f"{name}/{step}")
        importer.count(c.node)
        inner = scope.inner(f"{name}/{step}")
        begun = [c.const(np.full((1,) * rank, value)) for rank, value in zip(ranks, (np.int64(step), True))]
        results = importer.subgraph(body, inner, names, (*begun, *carried))
        condition, carried = results[0], results[1 : 1 + len(carried)]
        for values, value in zip(scanned, results[1 + len(carried) :]):
            values.append(value)
        step += 1
    importer.g.begin(name)
    collected = body.output[1 + len(carried) :]
    return carried + [
        _stack(c, values, 0, info, c.wants(n))
        for n, (values, info) in enumerate(zip(scanned, collected), len(carried))
    ]


def _scan(importer: Importer, c: NodeContext, scope: Scope) -> Sequence[str | None]:
    if c.opset < 9:
        raise c.unsupported("the batched form of opset 8", "convert the model to opset 9 or newer")
    name, count = c.g.node_name, int(c.required("num_scan_inputs"))
    if not 1 <= count <= len(c.inputs):
        raise ModelError(f"{c.label}: num_scan_inputs is {count}, but it has {len(c.inputs)} inputs")
    body, inputs = _graph(c, "body", len(c.inputs), len(c.inputs) - count)
    names = [info.name for info in inputs]
    states, scans = list(c.inputs[: len(c.inputs) - count]), c.inputs[len(c.inputs) - count :]
    outputs = len(body.output) - len(states)
    axes = _per_value(c, "scan_input_axes", count)
    backward = _directions(c, "scan_input_directions", count)
    length = _scan_length(c, scans, axes)
    _check_iterations(c, length)
    scanned: list[list[str | None]] = [[] for _ in range(outputs)]
    for step in range(length):
        importer.g.begin(f"{name}/{step}")
        importer.count(c.node)
        parts = [
            _element(c, value, axis, length - 1 - step if back else step)
            for value, axis, back in zip(scans, axes, backward)
        ]
        results = importer.subgraph(body, scope.inner(f"{name}/{step}"), names, (*states, *parts))
        states = results[: len(states)]
        for values, value in zip(scanned, results[len(states) :]):
            values.append(value)
    importer.g.begin(name)
    to_axes = _per_value(c, "scan_output_axes", outputs)
    reverse = _directions(c, "scan_output_directions", outputs)
    collected = zip(scanned, to_axes, reverse, body.output[len(states) :])
    return states + [
        _stack(c, values[::-1] if back else values, axis, info, c.wants(n))
        for n, (values, axis, back, info) in enumerate(collected, len(states))
    ]


def _per_value(c: NodeContext, attribute: str, count: int) -> list[int]:
    numbers = c.attr(attribute, [0] * count)
    if len(numbers) != count:
        raise ModelError(f"{c.label}: {attribute} has {len(numbers)} elements, expected {count}")
    return [int(n) for n in numbers]


def _directions(c: NodeContext, attribute: str, count: int) -> list[int]:
    found = _per_value(c, attribute, count)
    if not {0, 1}.issuperset(found):
        raise ModelError(f"{c.label}: {attribute} is {found}; expected 0 (forwards) or 1")
    return found


def _scan_length(c: NodeContext, scans: Sequence[str | None], axes: list[int]) -> int:
    lengths = set()
    for value, axis in zip(scans, axes):
        shape = () if value is None else c.type(value).dims
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"{c.label}: scan axis {axis} is outside the shape {list(shape)}")
        lengths.add(shape[axis])
    if len(lengths) != 1:
        raise ModelError(f"{c.label}: its scanned inputs have the lengths {sorted(lengths)}, expected one")
    return lengths.pop()


def _check_iterations(c: NodeContext, count: int) -> None:
    if count > MAX_ITERATIONS:
        raise c.unsupported(
            f"a loop of more than {MAX_ITERATIONS} iterations",
            "loops are unrolled; export the model with fewer iterations",
        )


def _element(c: NodeContext, value: str | None, axis: int, at: int) -> str:
    """value[…, at, …] along `axis`, which vanishes."""
    assert value is not None
    shape = list(c.type(value).dims)
    axis %= len(shape)
    starts, sizes = [0] * len(shape), [*shape[:axis], 1, *shape[axis + 1 :]]
    starts[axis] = at
    part = c.one(Slice(tuple(starts), tuple(sizes), (1,) * len(shape)), value)
    return c.one(Reshape((*shape[:axis], *shape[axis + 1 :])), part)


def _stack(
    c: NodeContext, values: Sequence[str | None], axis: int, info: ValueInfoProto, wanted: bool
) -> str | None:
    """The values behind each other along a new axis; of none, nothing of the size that the body declares."""
    if not wanted:
        return None
    if not values:
        type = declared_type(info, f"{c.label}: output {info.name!r} of its body")
        if type is None or not all(isinstance(d, int) for d in type.shape):
            raise c.unsupported(
                "collecting the outputs of no iterations", f"give {info.name!r} of its body a fixed shape"
            )
        sizes = list(type.dims)
        sizes.insert(_new_axis(c, axis, sizes), 0)
        return c.const(np.zeros(sizes, type.dtype.numpy))
    parts = []
    for value in values:
        if value is None:
            raise ModelError(f"{c.label}: its body leaves out an output that is collected")
        shape = c.type(value).dims
        at = _new_axis(c, axis, shape)
        parts.append(c.one(Reshape((*shape[:at], 1, *shape[at:])), value))
    return c.one(Concat(_new_axis(c, axis, c.type(parts[0]).dims[1:])), *parts)


def _new_axis(c: NodeContext, axis: int, shape: Sequence[int]) -> int:
    if not -len(shape) - 1 <= axis <= len(shape):
        raise ModelError(f"{c.label}: there is no axis {axis} to collect {list(shape)} along")
    return axis % (len(shape) + 1)


CONTROL_FLOW: dict[str, Callable[[Importer, NodeContext, Scope], Sequence[str | None]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
