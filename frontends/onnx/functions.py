"""Bodies of operators that are functions: those of the model, and those that ONNX defines itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

from ...compiler.ir.types import TensorType
from ...errors import ModelError
from .interface import domain_of
from .read_model import node_label, subgraphs


def onnx_function(
    node: NodeProto, opset: int, types: Sequence[TensorType | None]
) -> tuple[FunctionProto, dict[str, AttributeProto]] | None:
    """ONNX's body for `node` and the defaults of its attributes; None if ONNX gives no body."""
    domain = domain_of(node)
    if not onnx.defs.has(node.op_type, domain=domain, max_inclusive_version=opset):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, domain=domain, max_inclusive_version=opset)
    body = None
    if version := _newest(schema.function_opset_versions, opset):
        body = schema.get_function_with_opset_version(version)
    elif version := _newest(schema.context_dependent_function_opset_versions, opset):
        given = [TypeProto() if t is None else _type_proto(t) for t in types]
        bare = NodeProto()
        bare.CopyFrom(node)
        bare.input[:] = ["" if t is None else name for name, t in zip(node.input, types, strict=True)]
        if (domain, node.op_type) == ("", "Attention"):
            _drop_heads(bare, types)
        body = schema.get_context_dependent_function_with_opset_version(
            version, bare.SerializeToString(), [t.SerializeToString() for t in given]
        )
    if not body:
        return None
    function = FunctionProto.FromString(body)
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    return function, defaults


def _drop_heads(attention: NodeProto, types: Sequence[TensorType | None]) -> None:
    """Of four axes one has the heads. ONNX's body takes attributes that say their number, too, for a sign of
    three. ModelError where they say another one."""
    if types[0] is None or types[0].rank != 4:
        return
    axes = {"q_num_heads": types[0].dims[1], "kv_num_heads": None if types[1] is None else types[1].dims[1]}
    for attribute in [a for a in attention.attribute if a.name in axes]:
        if attribute.i not in (0, axes[attribute.name]):
            raise ModelError(
                f"{node_label(attention)}: {attribute.name} is {attribute.i}, but the input of four axes has "
                f"{axes[attribute.name]} heads"
            )
        attention.attribute.remove(attribute)


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=0)


def _type_proto(type: TensorType) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(type.dtype.code, type.dims)


MAX_BOUND_BYTES = 4 << 30
"""Of all nodes that are copied because their attributes differ from call to call."""


class BoundNodes:
    """Nodes of functions with a call's attributes in place; for the same attributes each is made once."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[NodeProto, tuple[str, ...]]] = {}  # by the node's identity
        self._bound: dict[tuple[int, ...], tuple[list[AttributeProto | None], NodeProto]] = {}
        self._bytes = 0

    def bind(self, node: NodeProto, given: Mapping[str, AttributeProto] | None) -> NodeProto:
        """`node` with references to its function's attributes replaced by `given`, absent ones dropped.

        ModelError for a node in no function, to which nothing is given.
        """
        if id(node) not in self._names:
            self._names[id(node)] = node, tuple(sorted(set(_references(node))))
        names = self._names[id(node)][1]
        if not names:
            return node
        if given is None:
            raise ModelError(f"{node_label(node)} refers to an attribute of a function, but is in none")
        values = [given.get(name) for name in names]
        key = id(node), *map(id, values)
        if key not in self._bound:
            bound = NodeProto()
            bound.CopyFrom(node)
            _bind(bound, given)
            self._bytes += bound.ByteSize()
            if self._bytes > MAX_BOUND_BYTES:
                raise ModelError(
                    f"{node_label(node)}: calls of functions repeat more than {MAX_BOUND_BYTES:,} bytes of "
                    "attributes; export the model with initializers instead"
                )
            self._bound[key] = values, bound
        return self._bound[key][1]


def _references(node: NodeProto) -> Iterator[str]:
    """Names of its function's attributes to which a node refers, or one in its graphs."""
    yield from (a.ref_attr_name for a in node.attribute if a.ref_attr_name)
    for g in subgraphs(node):
        for inner in g.node:
            yield from _references(inner)


def _bind(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    kept: list[AttributeProto] = []
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name not in given:
                continue
            value = AttributeProto()
            value.CopyFrom(given[a.ref_attr_name])
            if a.type not in (AttributeProto.UNDEFINED, value.type):
                names = [AttributeProto.AttributeType.Name(t) for t in (a.type, value.type)]
                raise ModelError(
                    f"{node_label(node)}: attribute {a.name!r} is of type {names[0]}, but its function is "
                    f"given {names[1]}"
                )
            value.name = a.name
            value.ClearField("ref_attr_name")
            kept.append(value)
            continue
        for g in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
            for inner in g.node:
                _bind(inner, given)
        kept.append(a)
    copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del node.attribute[:]
    node.attribute.extend(copies)
