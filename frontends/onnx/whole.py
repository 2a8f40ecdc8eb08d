"""A model in memory with everything that belongs to it, for tools that take a ModelProto."""

from __future__ import annotations

from pathlib import Path

import onnx

from .read_model import inline_external, inline_tensor, read_model


def read_whole(source: str | Path | bytes) -> onnx.ModelProto:
    """Checked, with external data read in. Raises like `read_model`; ModelError where external data is
    missing or lies outside of the model's folder, UnsupportedError where it is of an unknown type."""
    found = read_model(source)
    model = found.proto
    if found.folder is not None:
        for tensor in model.graph.initializer:
            inline_tensor(tensor, found.folder, f"initializer {tensor.name!r}")
        for nodes in (model.graph.node, *(function.node for function in model.functions)):
            inline_external(nodes, found.folder)
    return model
