"""A model in memory with everything that belongs to it, for tools that take a ModelProto."""

from __future__ import annotations

from pathlib import Path

import onnx

from ...errors import ModelError
from .check import load


def read_whole(source: str | Path | bytes) -> onnx.ModelProto:
    """Checked, with external data read in. Raises like `check.load`; ModelError where external data is
    missing or lies outside of the model's folder."""
    model = load(source).proto
    if isinstance(source, (str, Path)):
        try:
            onnx.load_external_data_for_model(model, str(Path(source).parent))
        except Exception as error:
            detail = " ".join(str(error).split())
            raise ModelError(f"{str(source)!r}: its external data cannot be read: {detail}") from None
    return model
