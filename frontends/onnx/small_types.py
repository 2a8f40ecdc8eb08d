"""Stored numbers of fewer than eight bits, and floats of eight, which Burnish computes nothing in.

A wider type holds each of them exactly. What reads one, SMALL_TYPE_READERS, must mean the same by that type.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from ...compiler.ir.types import DTYPES, U8
from ...errors import ModelError
from .external_data import ModelFolder, read_external
from .tensors import checked_bytes, onnx_dtype, tensor_array

SMALL_TYPE_READERS = ("DequantizeLinear", "Cast", "GatherBlockQuantized")
_BITS_AND_TYPE = {
    "INT2": (2, "i8"),
    "UINT2": (2, "u8"),
    "INT4": (4, "i8"),
    "UINT4": (4, "u8"),
    "FLOAT4E2M1": (4, "f32"),
    "FLOAT8E4M3FN": (8, "f32"),
    "FLOAT8E4M3FNUZ": (8, "f32"),
    "FLOAT8E5M2": (8, "f32"),
    "FLOAT8E5M2FNUZ": (8, "f32"),
    "FLOAT8E8M0": (8, "f32"),
}
_SMALL_TYPES = {code: name for name, code in TensorProto.DataType.items() if name in _BITS_AND_TYPE}


def stored_bytes(tensor: TensorProto, what: str) -> int:
    """That the data of `tensor` take in a file; several numbers of four bits and fewer share a byte."""
    name = _SMALL_TYPES.get(tensor.data_type)
    if name is None:
        return checked_bytes(onnx_dtype(tensor.data_type, what), tuple(tensor.dims), what)
    bits, _ = _BITS_AND_TYPE[name]
    return -(-checked_bytes(U8, tuple(tensor.dims), what) * bits // 8)


def stored_array(tensor: TensorProto, folder: ModelFolder | None, what: str) -> tuple[np.ndarray, str]:
    """The data of `tensor`, see `tensor_array`, and ONNX's name of its type where a wider one holds it."""
    name = _SMALL_TYPES.get(tensor.data_type)
    if name is None:
        return tensor_array(tensor, folder, what), ""
    _, wider = _BITS_AND_TYPE[name]
    shape, nbytes = tuple(tensor.dims), stored_bytes(tensor, what)
    packed = TensorProto(data_type=tensor.data_type, dims=shape, int32_data=tensor.int32_data)
    if tensor.data_location == TensorProto.EXTERNAL:
        packed.raw_data = read_external(tensor, folder, nbytes, what)
    elif tensor.HasField("raw_data"):
        packed.raw_data = tensor.raw_data
    given = len(packed.raw_data) if packed.HasField("raw_data") else len(packed.int32_data)
    if given != nbytes:
        raise ModelError(f"{what}: {name.lower()}{list(shape)} takes {nbytes} bytes, but {given} are there")
    array = numpy_helper.to_array(packed).astype(DTYPES[wider].numpy)
    array.setflags(write=False)
    return array, name.lower()
