"""Modules from Python: a thin layer over burnish.h that passes the memory of numpy arrays without copying.

module = open_module("resnet18.so")                   # or module_from_memory(…), just compiled
outputs = module.run({"x": array}, threads=2)         # numpy arrays by name

context = module.context(threads=2)                   # memory bound once, for the shortest call
context.bind_input("x", array)
context.run()
scores = context.output("scores")
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import InputError, InternalError, NoMemoryError, RunError, ToolError
from . import capi
from .arrays import (
    DTYPES,
    TensorInfo,
    address_of,
    as_array,
    as_memory,
    check_names,
    check_outputs,
    new_output,
    no_memory,
)
from .build import DeviceCode
from .dlpack import DeviceArray, Lent, when_gone

MOST_THREADS = 1024  # BURNISH_MAX_THREADS of burnish.h
IDLE_THREADS = 64  # of the contexts that a module keeps for its next runs, or two contexts


class StepInfo(NamedTuple):
    """A step of a module's plan."""

    kernel: str  # "copy" for a plain copy
    node: str  # names of the ONNX nodes that it computes
    tasks: int  # parts that threads share out, on a GPU the blocks; 1 for a copy
    flops: int  # of sums of products, a multiply-add being two; a node's last kernel has them all
    bytes: int  # of all buffers that the node's kernels read or write, each once
    gang: bool  # whether all threads run it at once, as they wait for each other


class StepTime(NamedTuple):
    """What one step of a run took, in nanoseconds."""

    kernel: str
    node: str
    ns: int


def thread_count(threads: Any) -> int:
    """`threads` as the runtime takes it; 0 and None mean one per available CPU. InputError if it is wrong."""
    try:
        count = 0 if threads is None else operator.index(threads)
    except TypeError:
        count = -1
    if not 0 <= count <= MOST_THREADS:
        raise InputError(
            f"threads is {threads!r}, expected a number from 1 to {MOST_THREADS}, or 0 for all cores"
        )
    return count


def file_path(path: Any) -> Path:
    """InputError for what cannot name a file."""
    try:
        result = Path(os.fsdecode(path))
    except TypeError:
        raise InputError(f"expected the path of a file, found {type(path).__name__}") from None
    if "\0" in str(result):
        raise InputError(f"the path {str(result)!r} contains a null character")
    return result


def _raise(error: capi.Error, code: int) -> NoReturn:
    raise_code(code, error.message.decode("utf-8", "replace"))


def raise_code(code: int, message: str) -> NoReturn:
    """The exception for a status of the runtime."""
    message = message or f"the runtime failed with code {code}"
    if code == capi.NO_MEMORY:
        raise NoMemoryError(message)
    if code > 0 or code in (capi.NO_THREAD, capi.BAD_DEVICE):
        raise RunError(message)
    if code == capi.NO_DEVICE:
        raise ToolError(message)
    raise InternalError(message) if code == capi.BAD_PLAN else InputError(message)


def _destroy_context(destroy: Any, handle: int | None, needed: Any) -> None:
    """`needed` lives until here: what the context's memory refers to."""
    destroy(handle)


class _Handle(capi.Pointer):
    """A context of the runtime. Memory that is lent keeps this alive, not what is bound to the context."""


class _Memory:
    """A context's memory for numpy; arrays of it keep the memory alive."""

    def __init__(self, handle: _Handle, address: int, nbytes: int):
        self.handle = handle
        self.__array_interface__ = {
            "data": (address, False),
            "typestr": "|u1",
            "shape": (nbytes,),
            "version": 3,
        }


class Pool:
    """Threads that contexts of any modules share; their runs take turns. `threads` counts the caller's."""

    def __init__(self, threads: int = 0):
        functions, error, handle = capi.library_functions(), capi.Error(), capi.Pointer()
        code = functions.pool_create(thread_count(threads), byref(handle), byref(error))
        if code:
            _raise(error, code)
        self.handle = handle
        when_gone(self, functions.pool_destroy, handle)


class Context:
    """Memory and threads for one run at a time of a module. Made by Module.context."""

    def __init__(self, module: Module, threads: int, pool: Pool | None):
        self.module = module
        self._keep: dict[tuple[str, str], tuple[np.ndarray | Lent, Any]] = {}  # what is bound, what is shown
        self._busy = threading.Lock()
        error, handle = capi.Error(), _Handle()
        count = thread_count(threads)
        options = capi.Options(ctypes.sizeof(capi.Options), count, pool.handle if pool else None)
        f = self._functions = module._functions
        code = f.create(module._api, byref(options), byref(handle), byref(error))
        if code:
            _raise(error, code)
        self._handle = handle
        self._run = f.run
        when_gone(handle, _destroy_context, f.destroy, handle.value, (module._owner, pool))
        self.threads: int = f.threads(handle)
        on_cuda = f.device_data(handle, 0, 0) or f.device_data(handle, 1, 0)
        self._as_memory = as_memory if on_cuda else as_array

    def _check(self, code: int) -> None:
        if code:
            _raise(self._functions.last_error(self._handle).contents, code)

    def _find(self, kind: str, name: str) -> tuple[int, TensorInfo]:
        infos = self.module._inputs if kind == "input" else self.module._outputs
        if name not in infos:
            raise InputError(f"no {kind} {name!r}; {self.module.name} has {', '.join(infos) or 'none'}")
        return infos[name]

    def _bind(self, kind: str, name: str, array: Any) -> None:
        index, info = self._find(kind, name)
        self._begin()
        try:
            if array is None:
                self._attach(kind, index, None, 0)
                self._keep.pop((kind, name), None)
            else:
                self._take(kind, index, info, array)
        finally:
            self._busy.release()

    def _take(self, kind: str, index: int, info: TensorInfo, array: Any) -> None:
        """Binds it, where no other thread has the context."""
        held = self._as_memory(kind, info, array)
        self._attach(kind, index, address_of(held), info.nbytes)
        self._keep[kind, info.name] = (held, array if isinstance(held, Lent) else held)

    def _attach(self, kind: str, index: int, address: int | None, nbytes: int) -> None:
        call = self._functions.bind_input if kind == "input" else self._functions.bind_output
        self._check(call(self._handle, index, address, nbytes))

    def _begin(self) -> None:
        """Takes the context until `_busy` is released; InputError if another thread has it."""
        if not self._busy.acquire(blocking=False):
            raise InputError("this context is running in another thread; give each thread its own context")

    def bind_input(self, name: str, array: Any) -> None:
        """From now on runs read `array`'s memory (or a copy now, if it is not contiguous); None unbinds.

        Modules for CUDA take memory of their GPU, too, which must be contiguous, from torch, cupy and
        whatever else speaks DLPack. What is written there later must be done before a run, or be work of the
        legacy stream. Memory at another place costs recording the run again.
        """
        self._bind("input", name, array)

    def bind_output(self, name: str, array: Any) -> None:
        """From now on runs write into `array`, which must be contiguous and writable and overlap nothing else
        that is bound; None unbinds."""
        self._bind("output", name, array)

    def bind(self, arrays: Mapping[str, Any]) -> None:
        """Binds inputs and outputs by name; a name that is both means the input."""
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"{self.module.name}: expected a dict of arrays by name, found {type(arrays).__name__}"
            )
        for name, array in arrays.items():
            if name in self.module._outputs and name not in self.module._inputs:
                self.bind_output(name, array)
            else:
                self.bind_input(name, array)

    def _view(self, kind: str, name: str) -> Any:
        index, info = self._find(kind, name)
        if (kind, name) in self._keep:
            return self._keep[kind, name][1]
        get = self._functions.input_data if kind == "input" else self._functions.output_data
        self._begin()
        try:
            address = get(self._handle, index)
        finally:
            self._busy.release()
        if not address:
            raise no_memory(kind, info)
        if not info.nbytes:
            return np.empty(info.shape, info.dtype)
        return np.asarray(_Memory(self._handle, address, info.nbytes)).view(info.dtype).reshape(info.shape)

    def input(self, name: str) -> Any:
        """The memory that runs read: the bound array, else the context's own in numpy, zero at first."""
        return self._view("input", name)

    def output(self, name: str) -> Any:
        """The memory that runs write; the next run overwrites it."""
        return self._view("output", name)

    def _on_device(self, kind: str, name: str) -> DeviceArray:
        index, info = self._find(kind, name)
        address = self._functions.device_data(self._handle, int(kind == "output"), index)
        if not address:
            raise InputError(
                f"{kind} {name!r}: modules for {self.module.target} have no memory on an NVIDIA GPU"
            )
        return DeviceArray(address, info.dtype_name, 8 * info.dtype.itemsize, info.shape, self._handle)

    def device_input(self, name: str) -> DeviceArray:
        """The context's own memory on the GPU. Once it is bound, runs read what others write there."""
        return self._on_device("input", name)

    def device_output(self, name: str) -> DeviceArray:
        """The context's own memory on the GPU, which runs write, and copy to the host unless it is bound."""
        return self._on_device("output", name)

    def run(self) -> None:
        """Runs once on the bound memory. RunError names the node that failed."""
        self._begin()
        try:
            if code := self._run(self._handle):
                self._check(code)  # before another thread may run it
        finally:
            self._busy.release()

    def run_profiled(self) -> list[StepTime]:
        """Runs once and says what each step took."""
        steps = self.module.steps
        times = (capi.Int64 * max(1, len(steps)))()
        self._begin()
        try:
            self._functions.profile(self._handle, times)
            self._check(self._run(self._handle))
        finally:
            self._functions.profile(self._handle, None)
            self._busy.release()
        return [StepTime(s.kernel, s.node, ns) for s, ns in zip(steps, times)]


class Module:
    """A compiled model, ready to run. `run` may be called from several threads at once."""

    def __init__(self, api: Any, owner: Any):
        self._api = api
        self._owner = owner
        self._functions = f = capi.Functions(api)
        self.name: str = f.name(api).decode("utf-8", "replace")
        self.target: str = f.target(api).decode("utf-8", "replace")
        self.inputs = tuple(self._describe(f.input, i) for i in range(f.input_count(api)))
        self.outputs = tuple(self._describe(f.output, i) for i in range(f.output_count(api)))
        self.steps = tuple(self._step(i) for i in range(f.step_count(api)))
        self._inputs = {info.name: (i, info) for i, info in enumerate(self.inputs)}
        self._outputs = {info.name: (i, info) for i, info in enumerate(self.outputs)}
        self._idle: dict[tuple[int, int], list[Context]] = {}  # by process, as threads are, and their number

    def _describe(self, query: Any, index: int) -> TensorInfo:
        tensor = capi.Tensor()
        query(self._api, index, byref(tensor))
        name, dtype = DTYPES[tensor.dtype]
        text = tensor.name.decode("utf-8", "replace")
        return TensorInfo(text, dtype, name, tuple(tensor.shape[: tensor.rank]), tensor.nbytes)

    def _step(self, index: int) -> StepInfo:
        step = capi.Step()
        self._functions.step(self._api, index, byref(step))
        kernel, node = (s.decode("utf-8", "replace") for s in (step.kernel, step.node))
        return StepInfo(kernel, node, step.tasks, step.flops, step.bytes, bool(step.gang))

    def context(self, threads: int = 1, pool: Pool | None = None) -> Context:
        """A context with its own threads (0: one per available CPU), or with those of `pool`."""
        return Context(self, threads, pool)

    def _bound(
        self, context: Context, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Binds every input, and for every output what `out` has or a new array; the outputs."""
        check_names(self.name, self.inputs, feeds)
        if out is None:
            out = {}
        else:
            check_outputs(self.name, self.outputs, out)
        for index, info in enumerate(self.inputs):
            context._take("input", index, info, feeds[info.name])
        outputs = {}
        for index, info in enumerate(self.outputs):
            array = out[info.name] if info.name in out else new_output(info)
            context._take("output", index, info, array)
            outputs[info.name] = array
        return outputs

    def run(
        self, feeds: Mapping[str, Any], threads: int = 1, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Outputs by name for inputs by name: numpy arrays or anything with DLPack, in memory of the host or,
        for modules for CUDA, of the GPU.

        Outputs are new numpy arrays, but for those of `out`, which are written into and returned. InputError
        names an input that is missing or has the wrong dtype or shape, RunError the failed node.
        """
        count = thread_count(threads)
        idle = self._idle.setdefault((os.getpid(), count), [])
        try:
            context = idle.pop()
        except IndexError:
            context = self.context(threads)
            context.module = weakref.proxy(self)  # so that both go with the last reference to the module
        try:
            outputs = self._bound(context, feeds, out)
            context.run()
            return outputs
        finally:
            context._keep.clear()
            few = len(idle) < max(2, IDLE_THREADS // context.threads)
            if few and not context._busy.locked():  # as an interrupt can leave it
                idle.append(context)

    def run_profiled(self, feeds: Mapping[str, Any], threads: int = 1) -> list[StepTime]:
        """What each step of one run took; the first run of new memory is slower than the following ones."""
        context = self.context(threads)
        self._bound(context, feeds)
        context.run()
        return context.run_profiled()


class _Owner:
    """Keeps a module's code and data until the last context of it is gone."""

    def __init__(self, keep: Any, close: Any, handle: Any):
        self.keep = keep
        when_gone(self, close, handle)


def open_module(path: str | Path, verify_digest: bool = False) -> Module:
    """The module of a .so file; InputError if it is not one, is damaged, or needs another CPU."""
    error, file, library = capi.Error(), capi.File(), capi.library()
    options = capi.OpenOptions(ctypes.sizeof(capi.OpenOptions), int(verify_digest))
    code = library.burnish_open(os.fsencode(file_path(path)), byref(options), byref(file), byref(error))
    if code:
        _raise(error, code)
    return Module(file.api, _Owner(None, library.burnish_close, file))


def _aligned(weights: np.ndarray | bytes | None) -> np.ndarray:
    """The bytes of `weights`, in place if aligned to 64 bytes, else copied."""
    if weights is None or len(weights) == 0:
        return np.zeros(0, np.uint8)
    if isinstance(weights, np.ndarray):
        data = np.ascontiguousarray(weights).reshape(-1).view(np.uint8)
    else:
        data = np.frombuffer(weights, np.uint8)
    if address_of(data) % 64 == 0:
        return data
    room = np.empty(data.nbytes + 64, np.uint8)
    start = -address_of(room) % 64
    room[start : start + data.nbytes] = data
    return room[start : start + data.nbytes]


def module_from_memory(
    plan: bytes,
    kernel_addresses: Sequence[int],
    weights: np.ndarray | bytes | None = None,
    keepalive: Any = None,
) -> Module:
    """A module of kernels that lie in this process, in the order of the plan's kernel table.

    `weights` are used in place where they are aligned to 64 bytes. `keepalive` owns the kernels' code.
    """
    data = _aligned(weights)
    addresses = (capi.Pointer * max(1, len(kernel_addresses)))(*kernel_addresses)
    error, api, library = capi.Error(), capi.ApiPointer(), capi.library()
    code = library.burnish_module_create(
        *(plan, len(plan), address_of(data), data.nbytes),
        *(addresses, len(kernel_addresses), byref(api), byref(error)),
    )
    if code:
        _raise(error, code)
    return Module(api, _Owner((data, keepalive), library.burnish_module_destroy, api))


def device_module_from_memory(
    plan: bytes, code: DeviceCode, weights: np.ndarray | bytes | None = None
) -> Module:
    """A module whose kernels run on a GPU; ToolError without a driver, RunError if it cannot run."""
    data = _aligned(weights)
    error, api, library = capi.Error(), capi.ApiPointer(), capi.library()
    status = library.burnish_device_module_create(
        *(plan, len(plan), address_of(data), data.nbytes),
        *(code.device.encode(), code.data, len(code.data), byref(api), byref(error)),
    )
    if status:
        _raise(error, status)
    return Module(api, _Owner(data, library.burnish_module_destroy, api))
