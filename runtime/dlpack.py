"""DLPack, the exchange of array memory without copies (dmlc/dlpack, dlpack.h of version 0.8), in ctypes."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64
from ctypes import c_void_p as Pointer
from dataclasses import dataclass
from typing import Any

HOST, CUDA, CUDA_PINNED = 1, 2, 3
LEGACY_STREAM = 1
"""The stream of CUDA that others wait for; the runtime's streams do."""

_KINDS = {"i": 0, "u": 1, "f": 2, "bf": 4, "bool": 6}
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(Structure):
    _fields_ = [
        ("data", Pointer),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("rank", c_int32),
        ("kind", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),  # of elements; NULL: row-major without gaps
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    pass


_DELETER = CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("manager", Pointer), ("deleter", _DELETER)]

_DESTRUCTOR = ctypes.PYFUNCTYPE(None, Pointer)
_api = ctypes.pythonapi
_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, Pointer, ctypes.c_char_p, _DESTRUCTOR)
_new_capsule = _NEW(("PyCapsule_New", _api))
_pointer = ctypes.PYFUNCTYPE(Pointer, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(c_int32, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
# A capsule that is being destroyed must not be referred to again: it is passed by its address.
_is_valid = ctypes.PYFUNCTYPE(c_int32, Pointer, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_at = ctypes.PYFUNCTYPE(Pointer, Pointer, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@dataclass(frozen=True)
class Lent:
    """Another library's memory; alive as long as this. `strides` count elements."""

    address: int
    dtype: str  # "f32", "bf16", "bool", … ; "" for what Burnish does not know
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int  # HOST, CUDA, …
    ordinal: int
    keep: Any

    @property
    def on_host(self) -> bool:
        return self.device in (HOST, CUDA_PINNED)

    @property
    def contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and stride != step:
                return 0 in self.shape
            step *= size
        return True


def when_gone(owner: Any, call: Callable[..., Any], *arguments: Any) -> None:
    """`call` when `owner` is collected, but not when the interpreter ends: threads and other libraries may be
    using the memory then, which goes with the process.
    """
    weakref.finalize(owner, call, *arguments).atexit = False


class _Capsule:
    """Ends the loan with itself."""

    def __init__(self, capsule: Any):
        managed = ctypes.cast(_pointer(capsule, _NAME), POINTER(_Managed))
        _rename(capsule, _USED)
        self.tensor: _Tensor = managed.contents.tensor
        if managed.contents.deleter:
            when_gone(self, managed.contents.deleter, managed)


def borrow(value: Any) -> Lent:
    """The memory of an array with `__dlpack__`. What its library raises is passed on.

    Memory of a GPU holds, for work of the legacy stream from now on, what its library's work so far gives.
    """
    device, ordinal = value.__dlpack_device__()
    options = {"stream": LEGACY_STREAM} if device == CUDA else {}
    capsule = _Capsule(value.__dlpack__(**options))
    t = capsule.tensor
    shape = tuple(t.shape[: t.rank])
    strides = tuple(t.strides[: t.rank]) if t.strides else _row_major(shape)
    address = (t.data or 0) + t.byte_offset
    return Lent(address, _dtype_name(t), shape, strides, int(device), int(ordinal), capsule)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _dtype_name(t: _Tensor) -> str:
    kind = next((name for name, code in _KINDS.items() if code == t.kind), "")
    if t.lanes != 1 or not kind:
        return ""
    return kind if kind == "bool" else f"{kind}{t.bits}"


_lent: dict[int, tuple[Any, ...]] = {}
"""What is lent to other libraries, by the address of its description, until they give it back."""


@_DELETER
def _delete(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    if _is_valid(capsule, _NAME):  # nobody took it
        _lent.pop(_pointer_at(capsule, _NAME), None)


for _callback in (_delete, _destroy):  # what is lent may outlive this module when the interpreter ends
    _api.Py_IncRef(ctypes.py_object(_callback))


def lend(address: int, dtype: str, bits: int, shape: tuple[int, ...], device: int, owner: Any) -> Any:
    """A capsule of row-major memory on device 0 of a kind, which `owner` keeps alive."""
    sizes, steps = ((c_int64 * max(1, len(shape)))(*numbers) for numbers in (shape, _row_major(shape)))
    kind = _KINDS[dtype.rstrip("0123456789")]
    tensor = _Tensor(address, device, 0, len(shape), kind, bits, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, _delete)
    place = ctypes.addressof(managed)
    _lent[place] = (managed, sizes, steps, owner)
    return _new_capsule(place, _NAME, _destroy)


class DeviceArray:
    """An input or output of a context in memory of its GPU, for torch.from_dlpack or cupy.from_dlpack."""

    def __init__(self, address: int, dtype: str, bits: int, shape: tuple[int, ...], owner: Any):
        self.address, self.dtype, self.bits, self.shape = address, dtype, bits, shape
        self._owner = owner

    def __repr__(self) -> str:
        return f"<burnish.DeviceArray {self.dtype}[{','.join(map(str, self.shape))}] on CUDA device 0>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: Any = None, copy: bool | None = None, **_: Any) -> Any:
        """Runs are over when they return: there is nothing that a stream would have to wait for."""
        if copy:
            raise BufferError("Burnish lends its memory, it does not copy it")
        return lend(self.address, self.dtype, self.bits, self.shape, CUDA, self._owner)
