"""burnish.h in ctypes, and the library that implements it in this process."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as Pointer
from functools import lru_cache
from typing import Any

from ..errors import ToolError
from .build import runtime_library

NO_MEMORY, NO_THREAD, BAD_PLAN, NO_DEVICE, BAD_DEVICE = -2, -3, -9, -11, -12
Int64 = c_int64


class Error(Structure):
    _fields_ = [("code", c_int32), ("step", c_int32), ("message", c_char * 504)]


class Tensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("shape", POINTER(c_int64)),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("nbytes", c_int64),
    ]


class Step(Structure):
    _fields_ = [
        ("kernel", c_char_p),
        ("node", c_char_p),
        ("tasks", c_int64),
        ("flops", c_int64),
        ("bytes", c_int64),
        ("gang", c_int32),
        ("reserved", c_int32),
    ]


class Options(Structure):
    _fields_ = [("size", c_uint32), ("threads", c_int32), ("pool", Pointer)]


class Api(Structure):
    pass


ApiPointer = POINTER(Api)

_BIND = CFUNCTYPE(c_int32, Pointer, c_int32, Pointer, c_int64)
_COUNT = CFUNCTYPE(c_int32, ApiPointer)
_TEXT = CFUNCTYPE(c_char_p, ApiPointer)
_DATA = CFUNCTYPE(Pointer, Pointer, c_int32)
_TENSOR = CFUNCTYPE(c_int32, ApiPointer, c_int32, POINTER(Tensor))
_FUNCTIONS: list[tuple[str, Any]] = [
    ("name", _TEXT),
    ("target", _TEXT),
    ("check", CFUNCTYPE(c_int32, ApiPointer, POINTER(Error))),
    ("input_count", _COUNT),
    ("output_count", _COUNT),
    ("input", _TENSOR),
    ("output", _TENSOR),
    ("step_count", _COUNT),
    ("step", CFUNCTYPE(c_int32, ApiPointer, c_int32, POINTER(Step))),
    ("pool_create", CFUNCTYPE(c_int32, c_int32, POINTER(Pointer), POINTER(Error))),
    ("pool_destroy", CFUNCTYPE(None, Pointer)),
    ("create", CFUNCTYPE(c_int32, ApiPointer, POINTER(Options), POINTER(Pointer), POINTER(Error))),
    ("destroy", CFUNCTYPE(None, Pointer)),
    ("bind_input", _BIND),
    ("bind_output", _BIND),
    ("input_data", _DATA),
    ("output_data", _DATA),
    ("run", CFUNCTYPE(c_int32, Pointer)),
    ("last_error", CFUNCTYPE(POINTER(Error), Pointer)),
    ("profile", CFUNCTYPE(c_int32, Pointer, POINTER(c_int64))),
    ("threads", CFUNCTYPE(c_int32, Pointer)),
    ("prepare", CFUNCTYPE(c_int32, ApiPointer, POINTER(Options), POINTER(Error))),
    ("unprepare", CFUNCTYPE(None, ApiPointer)),
    ("device_data", CFUNCTYPE(Pointer, Pointer, c_int32, c_int32)),
]
Api._fields_ = [
    ("magic", c_uint32),
    ("version", c_uint32),
    ("size", c_uint64),
    ("image", Pointer),
    *_FUNCTIONS,
]


class File(Structure):
    _fields_ = [("api", ApiPointer), ("handle", Pointer)]


class OpenOptions(Structure):
    _fields_ = [("size", c_uint32), ("verify_digest", c_int32), ("threads", c_int32)]


class Functions:
    """The functions of a table, each fetched once."""

    def __init__(self, api: Any):
        for name, _ in _FUNCTIONS:
            setattr(self, name, getattr(api.contents, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The runtime as a shared library of this process."""
    path = runtime_library()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolError(
            f"cannot load the runtime {path}: {error}; delete it to have it built again"
        ) from error
    lib.burnish_open.argtypes = [c_char_p, POINTER(OpenOptions), POINTER(File), POINTER(Error)]
    lib.burnish_close.argtypes = [POINTER(File)]
    lib.burnish_close.restype = None
    lib.burnish_module_create.argtypes = [
        *(c_char_p, c_uint64, Pointer, c_uint64, POINTER(Pointer), c_uint64),
        *(POINTER(ApiPointer), POINTER(Error)),
    ]
    lib.burnish_device_module_create.argtypes = [
        *(c_char_p, c_uint64, Pointer, c_uint64, c_char_p, c_char_p, c_uint64),
        *(POINTER(ApiPointer), POINTER(Error)),
    ]
    lib.burnish_module_destroy.argtypes = [ApiPointer]
    lib.burnish_module_destroy.restype = None
    return lib


@lru_cache(maxsize=1)
def library_functions() -> Functions:
    """The table of the library itself, for what needs no module: thread pools."""
    return Functions(ctypes.pointer(Api.in_dll(library(), "burnish_runtime")))
