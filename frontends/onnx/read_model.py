"""From a path, bytes or ModelProto to a model that may be walked: parsed, bounded in depth, checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message import Error as MessageError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ...errors import InputError, ModelError, UnsupportedError
from .external_data import ModelFolder, open_regular, read_external
from .interface import domain_of
from .small_types import stored_bytes

OLDEST_OPSET = 7
NEWEST_OPSET = onnx.defs.onnx_opset_version()
ADDED = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Operators that onnxruntime's optimisers write in ONNX's own domain, at opsets that lack them."""
MAX_DEPTH = 24
"""Of graphs nested in attributes, and of functions that call functions."""
_SMALL = 1 << 16  # bytes; a larger initializer is declared to the checker as an input, not copied


@dataclass(frozen=True)
class Model:
    """`skeleton` holds everything but large initializers, which are in `proto`, and may be changed freely."""

    proto: ModelProto
    skeleton: ModelProto
    folder: ModelFolder | None
    opsets: dict[str, int]


def read_model(source: str | Path | bytes | ModelProto) -> Model:
    """Reads and checks a model. InputError if the file cannot be read, ModelError if it is no valid model,
    UnsupportedError for an opset, operator or kind of value outside what Burnish knows."""
    proto, folder = _parse(source)
    _check_depth(proto)
    _check_text(proto)
    opsets = opset_imports(proto.opset_import, "the model")
    skeleton = _skeleton(proto)
    for nodes in (skeleton.graph.node, *(f.node for f in skeleton.functions)):
        inline_external(nodes, folder)
    _check_operators(skeleton, opsets)
    _run_checker(_for_checker(skeleton, opsets.get("", NEWEST_OPSET)))
    return Model(proto, skeleton, folder, opsets)


def _parse(source: str | Path | bytes | ModelProto) -> tuple[ModelProto, ModelFolder | None]:
    if isinstance(source, ModelProto):
        return source, None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(bytes(source), "the given bytes"), None
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"a model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}")
    path = Path(os.fsdecode(source))
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"cannot read the model {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"cannot read the model {str(path)!r}: {error}") from None
    return _decode(data, repr(str(path))), ModelFolder.of(path)


def _decode(data: bytes, what: str) -> ModelProto:
    if not data:
        raise ModelError(f"{what} is empty, expected an ONNX model")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{what} is not an ONNX model: damaged, truncated or of another format") from None
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{what} is not an ONNX model: it has no graph or no opset")
    return model


def _check_text(message: Message) -> None:
    """ModelError for names that are no UTF-8, which the parser lets pass, and for unprintable operators."""
    names = [message.name] if isinstance(message, TensorProto) else []
    if isinstance(message, NodeProto) and not f"{message.op_type}{message.domain}".isprintable():
        raise ModelError(f"the model is damaged: the operator {message.op_type!r} is not a printable name")
    if not isinstance(message, TensorProto):
        for field, value in message.ListFields():
            many = value if hasattr(value, "extend") else (value,)
            if field.type == FieldDescriptor.TYPE_STRING:
                names += many
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in many:
                    _check_text(inner)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the model is damaged: the name {name[:40]!r} is not UTF-8 text")


def opset_imports(imports: Iterable[onnx.OperatorSetIdProto], what: str) -> dict[str, int]:
    """Domain → version, with ONNX's own domain as ''; UnsupportedError outside the supported range."""
    opsets = {domain_of(o): o.version for o in imports}
    version = opsets.get("", NEWEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise UnsupportedError(
            f"{what} uses ONNX opset {version}; supported are {OLDEST_OPSET} to {NEWEST_OPSET}; "
            "convert it with onnx.version_converter"
        )
    return opsets


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.g
        yield from a.graphs


def all_nodes(model: ModelProto) -> Iterator[tuple[NodeProto, FunctionProto | None, int]]:
    """Every node with the function that it stands in and the depth of its graph."""
    for owner in (None, *model.functions):
        stack = [(node, 0) for node in (model.graph if owner is None else owner).node]
        while stack:
            node, depth = stack.pop()
            yield node, owner, depth
            stack += [(inner, depth + 1) for g in subgraphs(node) for inner in g.node]


def _check_depth(model: ModelProto) -> None:
    for node, _, depth in all_nodes(model):
        if depth > MAX_DEPTH:
            raise ModelError(f"{node_label(node)}: graphs are nested deeper than {MAX_DEPTH}")


def node_label(node: NodeProto) -> str:
    return f"node {node.name or '/'.join(map(str, node.output))!r} ({node.op_type})"


def _skeleton(model: ModelProto) -> ModelProto:
    """A copy in which large or external initializers are inputs, so that their data is not copied."""
    light, graph = ModelProto(), model.graph
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = graph.name or "graph"
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, name).extend(getattr(graph, name))
    declared, seen = {i.name for i in graph.input}, set()
    for t in graph.initializer:
        if not t.name or t.name in seen:
            raise ModelError(f"initializer {t.name!r} " + ("stands twice" if t.name else "has no name"))
        seen.add(t.name)
        if t.data_location != TensorProto.EXTERNAL and t.ByteSize() <= _SMALL:
            light.graph.initializer.append(t)
        elif t.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    return light


def _complete_types(graph: GraphProto) -> None:
    """Gives inputs and outputs the types and shapes that the checker insists on, where they are absent."""
    for info in (*graph.input, *graph.output):
        if info.type.WhichOneof("value") in (None, "tensor_type"):
            tensor = info.type.tensor_type
            tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
            if not tensor.HasField("shape"):
                tensor.shape.SetInParent()
    for node in graph.node:
        for inner in subgraphs(node):
            _complete_types(inner)


def inline_external(nodes: Iterable[NodeProto], folder: ModelFolder | None) -> None:
    """Reads external data of tensors in attributes and nested graphs into the nodes."""
    for node in nodes:
        for a in node.attribute:
            inner = [g.initializer for g in ((a.g,) if a.HasField("g") else ()) + tuple(a.graphs)]
            for t in (*((a.t,) if a.HasField("t") else ()), *a.tensors, *(t for ts in inner for t in ts)):
                inline_tensor(t, folder, f"{node_label(node)}: tensor {t.name!r}")
        for g in subgraphs(node):
            inline_external(g.node, folder)


def inline_tensor(tensor: TensorProto, folder: ModelFolder | None, what: str) -> None:
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.raw_data = read_external(tensor, folder, stored_bytes(tensor, what), what)
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT


def _check_operators(model: ModelProto, opsets: dict[str, int]) -> None:
    """UnsupportedError for an operator of ONNX's own domain that neither ONNX nor the model defines."""
    own = {(f.domain, f.name) for f in model.functions}
    for node, owner, _ in all_nodes(model):
        if domain_of(node) or (node.domain, node.op_type) in own:
            continue
        version = (opset_imports(owner.opset_import, f"function {owner.name!r}") if owner else opsets).get("")
        if version is not None and not (_in_onnx(node, version) or node.op_type in ADDED):
            raise unknown_operator(node, version)


def _in_onnx(node: NodeProto, opset: int) -> bool:
    return onnx.defs.has(node.op_type, max_inclusive_version=opset)


def unknown_operator(node: NodeProto, opset: int | None) -> UnsupportedError:
    domain = node.domain or "ai.onnx"
    return UnsupportedError(
        f"{node_label(node)}: operator {node.op_type} (domain {domain}, opset {opset}) is not supported; "
        "export the model with supported operators, or add it as docs/add-an-operator.md says"
    )


def _for_checker(model: ModelProto, opset: int) -> ModelProto:
    """A copy with what ONNX's checker insists on, and with what it would refuse in a domain of its own:
    GroupNormalization before opset 21, deprecated because its scales were specified otherwise than elsewhere,
    and what is ADDED.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    _complete_types(copy.graph)
    for node, owner, _ in all_nodes(copy):
        refused = node.op_type in ADDED or (node.op_type == "GroupNormalization" and opset < 21 and not owner)
        if not domain_of(node) and refused:
            node.domain = "burnish.unchecked"
    for holder in (copy, *copy.functions):
        holder.opset_import.add(domain="burnish.unchecked", version=1)
    return copy


def _run_checker(model: ModelProto) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"the model is not valid ONNX: {_one_line(str(error))}") from None
    except (ValueError, RuntimeError, MessageError) as error:
        raise ModelError(f"the model cannot be checked: {_one_line(str(error))}") from None


def _one_line(text: str) -> str:
    return " ".join(text.split())
