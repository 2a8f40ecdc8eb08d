"""What the runtime takes for arrays, by name: numpy's, and others' by DLPack, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InputError, NoMemoryError
from .dlpack import CUDA, Lent, borrow

DTYPES: dict[int, tuple[str, np.dtype]] = {
    1: ("f32", np.dtype(np.float32)),
    2: ("u8", np.dtype(np.uint8)),
    3: ("i8", np.dtype(np.int8)),
    4: ("u16", np.dtype(np.uint16)),
    5: ("i16", np.dtype(np.int16)),
    6: ("i32", np.dtype(np.int32)),
    7: ("i64", np.dtype(np.int64)),
    9: ("bool", np.dtype(np.bool_)),
    10: ("f16", np.dtype(np.float16)),
    11: ("f64", np.dtype(np.float64)),
    12: ("u32", np.dtype(np.uint32)),
    13: ("u64", np.dtype(np.uint64)),
    16: ("bf16", np.dtype(ml_dtypes.bfloat16)),
}
"""ONNX's TensorProto.DataType → Burnish's name, numpy's dtype."""

_NUMPY = {name: dtype for name, dtype in DTYPES.values()}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a module; memory is row-major without gaps."""

    name: str
    dtype: np.dtype
    dtype_name: str  # "f32", "bf16", …
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype_name}[{','.join(map(str, self.shape))}]"


def check_names(module: str, inputs: Sequence[TensorInfo], feeds: Mapping[str, Any]) -> None:
    """InputError unless there is a value for every input, and for nothing else."""
    names = [info.name for info in inputs]
    if isinstance(feeds, Mapping) and feeds.keys() == set(names):
        return
    expected = ", ".join(map(str, inputs)) or "no inputs"
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"{module}: expected a dict of arrays by name, {expected}; found {type(feeds).__name__}"
        )
    missing = [n for n in names if n not in feeds]
    unknown = [str(n) for n in feeds if n not in names]
    found = [f"missing {', '.join(missing)}"] * bool(missing)
    found += [f"unknown {', '.join(unknown)}"] * bool(unknown)
    raise InputError(f"{module}: {' and '.join(found)}; expected {expected}")


def check_outputs(module: str, outputs: Sequence[TensorInfo], out: Mapping[str, Any]) -> None:
    """InputError unless `out` has arrays for outputs alone."""
    if not isinstance(out, Mapping):
        raise InputError(f"{module}: out: expected a dict of arrays by name, found {type(out).__name__}")
    infos = {info.name: info for info in outputs}
    for name, value in out.items():
        if name not in infos:
            raise InputError(f"no output {name!r}; {module} has {', '.join(infos) or 'none'}")
        if value is None:
            raise InputError(f"output {name!r}: expected {infos[name]}, found None")


def no_memory(kind: str, info: TensorInfo) -> NoMemoryError:
    return NoMemoryError(f"{kind} {info.name!r}: no memory for its {info.nbytes} bytes")


def new_output(info: TensorInfo) -> np.ndarray:
    try:
        return np.empty(info.shape, info.dtype)
    except MemoryError:
        raise no_memory("output", info) from None


def as_array(kind: str, info: TensorInfo, value: Any) -> np.ndarray:
    """A contiguous array of exactly the expected type; copies only what is not contiguous or not aligned."""
    memory = as_memory(kind, info, value)
    if isinstance(memory, Lent):
        raise InputError(
            f"{kind} {info.name!r}: lies on a GPU, where only modules for CUDA use it; copy it to the host"
        )
    return memory


def as_memory(kind: str, info: TensorInfo, value: Any) -> np.ndarray | Lent:
    """`as_array` of what lies on the host; memory of an NVIDIA GPU as it is, which must be contiguous."""
    if isinstance(value, np.generic) and kind == "input":
        value = np.asarray(value)
    elif not isinstance(value, np.ndarray):
        lent = _borrow(kind, info, value)
        if lent.device == CUDA:
            return _checked(kind, info, lent)
        value = _host_array(kind, info, lent)
    elif kind == "output" and not value.flags.writeable:
        raise InputError(f"output {info.name!r}: the array to bind is read-only")
    if value.dtype != info.dtype or value.shape != info.shape:
        raise _wrong_type(kind, info, str(value.dtype), value.shape)
    if not (value.flags.c_contiguous and value.flags.aligned):
        if kind == "output":
            raise InputError(
                f"output {info.name!r}: memory to bind must be contiguous; pass an array from np.empty"
            )
        try:
            value = np.require(value, requirements=["C", "A"])
        except MemoryError:
            raise no_memory(kind, info) from None
    return value


def address_of(memory: np.ndarray | Lent) -> int:
    return memory.address if isinstance(memory, Lent) else memory.__array_interface__["data"][0]


def _wrong_type(kind: str, info: TensorInfo, dtype: str, shape: tuple[int, ...]) -> InputError:
    found = f"{dtype or 'another dtype'}[{','.join(map(str, shape))}]"
    return InputError(f"{kind} {info.name!r}: expected {info}, found {found}")


def _borrow(kind: str, info: TensorInfo, value: Any) -> Lent:
    if value is None:
        raise InputError(f"{kind} {info.name!r}: expected {info}, found None")
    if isinstance(value, np.generic) or not hasattr(value, "__dlpack__"):
        raise InputError(f"{kind} {info.name!r}: expected an array {info}, found {type(value).__name__}")
    try:
        return borrow(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{kind} {info.name!r}: cannot be taken by DLPack: {error}") from error


def _checked(kind: str, info: TensorInfo, lent: Lent) -> Lent:
    if lent.dtype != info.dtype_name or lent.shape != info.shape:
        raise _wrong_type(kind, info, lent.dtype, lent.shape)
    if not lent.contiguous:
        raise InputError(f"{kind} {info.name!r}: memory of a GPU must be contiguous; copy the array")
    return lent


class _Interface:
    """Memory for numpy; arrays of it keep `owner` alive."""

    def __init__(self, lent: Lent, item: int):
        self.owner = lent
        self.__array_interface__ = {
            "data": (lent.address, False),
            "typestr": f"|V{item}",
            "shape": lent.shape,
            "strides": tuple(item * stride for stride in lent.strides),
            "version": 3,
        }


def _host_array(kind: str, info: TensorInfo, lent: Lent) -> np.ndarray:
    dtype = _NUMPY.get(lent.dtype)
    if not lent.on_host or dtype is None:
        where = f" on a device of DLPack's kind {lent.device}" * (not lent.on_host)
        raise InputError(
            f"{kind} {info.name!r}: expected {info} in memory of the host or of an NVIDIA GPU, "
            f"found {lent.dtype or 'another dtype'}{where}"
        )
    if 0 in lent.shape:
        return np.empty(lent.shape, dtype)
    return np.asarray(_Interface(lent, dtype.itemsize)).view(dtype)
