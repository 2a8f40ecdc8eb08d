"""Networks that come with the onnx package without their weights ("light" models of ONNX's backend tests)."""

from __future__ import annotations

from pathlib import Path

import onnx

from ..errors import InputError
from .randomize import random_weights

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light(name: str, *, seed: int, batch: int) -> onnx.ModelProto:
    """The network with random weights, as it was exported: batch 1, 224×224.

    InputError for another batch, or where this onnx package came without its test data.
    """
    if batch != 1:
        raise InputError(f"{name}: batch {batch}: this network has a fixed batch of 1")
    path = FOLDER / f"light_{name}.onnx"
    if not path.is_file():
        raise InputError(f"{name}: the installed onnx package lacks {path.name} of its test data")
    return random_weights(onnx.load(path), seed)
