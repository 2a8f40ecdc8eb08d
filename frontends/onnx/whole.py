"""A model in memory with everything that belongs to it, for tools that take a ModelProto."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import onnx

from ...errors import ModelError, UnsupportedError
from .read_model import read_model
from .small_types import stored_bytes


def read_whole(source: str | Path | bytes) -> onnx.ModelProto:
    """Checked, with external data read in. Raises like `read_model`; ModelError where external data is
    missing or lies outside of the model's folder."""
    model = read_model(source).proto
    if isinstance(source, (str, Path)):
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL and not any(
                entry.key == "length" for entry in tensor.external_data
            ):  # onnx would read to the end of the file
                with suppress(UnsupportedError):
                    size = stored_bytes(tensor, f"initializer {tensor.name!r}")
                    tensor.external_data.add(key="length", value=str(size))
        try:
            onnx.load_external_data_for_model(model, str(Path(source).parent))
        except Exception as error:
            detail = " ".join(str(error).split())
            raise ModelError(f"{str(source)!r}: its external data cannot be read: {detail}") from None
    return model
