"""The ONNX backend interface, so that ONNX's own test suite and other tools can run models through Burnish.

from burnish import onnx_backend
rep = onnx_backend.prepare(model)      # model: onnx.ModelProto
y, = rep.run([x])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from .errors import InputError, NeedsValueError, UnsupportedError
from .frontends.onnx.interface import fed_inputs, static_shape
from .frontends.onnx.tensors import native, numpy_dtype
from .pipeline import compile as compile_model

FEW, KEPT, MOST_MEMORY, MOST_THREADS = 2, 32, 4 << 30, 256
"""Compiled modules kept per model, one for each set of shapes: always the last FEW; up to KEPT while together
they take at most MOST_MEMORY bytes and MOST_THREADS threads."""
Compile = Callable[..., Any]
"""`pipeline.compile`, or another function of its interface whose result has run(dict) → dict."""


class BurnishRep(BackendRep):
    """A prepared model. Where inputs decide sizes, it is compiled when it first meets these inputs."""

    def __init__(self, model: onnx.ModelProto, compile: Compile = compile_model, **options: Any):
        self._model: onnx.ModelProto | None = model
        self._compile, self._options = compile, options
        known = options.get("values") or {}
        self._inputs = [i for i in fed_inputs(model.graph) if i.name not in known]
        self._outputs = [o.name for o in model.graph.output]
        self._fixed_inputs: tuple[str, ...] = ()
        self._modules: dict[tuple, Any] = {}
        self._cache_lock, self._compiling = threading.Lock(), threading.Lock()
        tensors = all(i.type.HasField("tensor_type") for i in self._inputs)
        self._has_open_sizes = tensors and any(static_shape(i) is None for i in self._inputs)
        if not self._has_open_sizes:
            try:
                self._modules[()] = compile(model, **options)
                self._model = None  # as large as the module
            except NeedsValueError as error:
                self._require(error)

    @property
    def module(self) -> Any:
        """What the model was compiled to where no input leaves anything open; None else."""
        return self._modules.get(())

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The outputs in the model's order. `inputs`: arrays in order of the model's inputs, or by name."""
        feed = self._feed(inputs)
        module, fixed = self._cached_module(feed) or self._compile_for(feed)
        results = module.run({n: a for n, a in feed.items() if n not in fixed})
        return tuple(results[name] for name in self._outputs)

    def _feed(self, inputs: Any) -> dict[str, np.ndarray]:
        names = [i.name for i in self._inputs]
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, Iterable):
                raise InputError(f"inputs: expected a list or dict of arrays, found {type(inputs).__name__}")
            given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(given) > len(names):
                raise InputError(f"{len(given)} inputs are given; the model takes {len(names)}")
            inputs = dict(zip(names, given))
        for name in inputs:
            if name not in names:
                raise InputError(f"there is no input {name!r}; the model takes {', '.join(names) or 'none'}")
        missing = [n for n in names if n not in inputs]
        if missing:
            raise InputError(f"the input {missing[0]!r} is missing; the model takes {', '.join(names)}")
        return {i.name: _array(i, inputs[i.name]) for i in self._inputs}

    def _cached_module(self, feed: Mapping[str, np.ndarray]) -> tuple[Any, tuple[str, ...]] | None:
        """A module that is there, and the inputs that became part of it."""
        with self._cache_lock:
            key = _key(*self._sizes(feed))
            known = self._modules.pop(key, None)
            if known is None:
                return None
            self._modules[key] = known  # behind those that were used before
            return known, self._fixed_inputs

    def _compile_for(self, feed: Mapping[str, np.ndarray]) -> tuple[Any, tuple[str, ...]]:
        """A new one, while others run; one is compiled at a time."""
        with self._compiling:
            while (known := self._cached_module(feed)) is None:
                values, shapes = self._sizes(feed)
                options = dict(self._options)
                all_shapes = shapes | (options.pop("shapes", None) or {})
                all_values = values | (options.pop("values", None) or {})
                try:
                    module = self._compile(self._model, values=all_values, shapes=all_shapes, **options)
                except NeedsValueError as error:
                    self._require(error)
                    continue
                with self._cache_lock:
                    self._modules[_key(values, shapes)] = module
                    self._evict()
                return module, self._fixed_inputs
            return known

    def _sizes(self, feed: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a module is compiled for: values of inputs that decide sizes, shapes of the others."""
        values = {n: feed[n] for n in self._fixed_inputs}
        if not self._has_open_sizes:
            return values, {}
        return values, {n: a.shape for n, a in feed.items() if n not in values}

    def _evict(self) -> None:
        """Drops the modules that were not used for longest; the last FEW stay."""
        last, *others = reversed(self._modules)
        memory, threads = _needs(self._modules[last])
        for n, key in enumerate(others, 1):
            needs = _needs(self._modules[key])
            memory, threads = memory + needs[0], threads + needs[1]
            if n >= KEPT or (n >= FEW and (memory > MOST_MEMORY or threads > MOST_THREADS)):
                del self._modules[key]

    def _require(self, error: NeedsValueError) -> None:
        """Adds the inputs that the error asks for; raises it where they are known already, or none."""
        more = [n for n in error.inputs if n not in self._fixed_inputs]
        if not more:
            raise error
        with self._cache_lock:
            self._fixed_inputs += tuple(more)


def _needs(module: Any) -> tuple[int, int]:
    """(Bytes, threads)."""
    plan = getattr(module, "plan", None)
    return (0, 0) if plan is None else (int(plan.memory(module.threads)), module.threads)


def _key(values: Mapping[str, np.ndarray], shapes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((n, a.shape, a.tobytes()) for n, a in values.items()) + tuple(shapes.items())


def _array(info: onnx.ValueInfoProto, value: Any) -> np.ndarray:
    """Of the dtype that the input declares: before anything is compiled for its shape."""
    if isinstance(value, (list, tuple, dict)) or value is None:
        raise UnsupportedError(f"input {info.name!r} is given as {type(value).__name__}; expected an array")
    try:
        array = native(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # as the array's library likes
        found = type(value).__name__
        raise InputError(f"input {info.name!r}: {found} is no array of numpy: {error}") from None
    code = info.type.tensor_type.elem_type
    declared = numpy_dtype(code, f"input {info.name!r}") if code else array.dtype
    if declared.kind in "biufcV" and array.dtype != declared:
        raise InputError(f"input {info.name!r}: expected {declared}, found {array.dtype}")
    return array


class BurnishBackend(Backend):
    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model compiles, as far as can be said without its inputs."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BurnishRep:
        """Compiles `model`; keyword arguments are those of `burnish.compile`."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"the device {device!r} is not supported; supported is CPU")
        return BurnishRep(model, **kwargs)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[np.ndarray],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Runs one operator; `outputs_info` (dtype and shape of each output) may be omitted."""
        helper = onnx.helper
        names = [n for n in node.input if n]
        if len(inputs) != len(names):
            raise InputError(f"{node.op_type} has {len(names)} inputs, but {len(inputs)} are given")
        given = dict(zip(names, map(native, inputs)))
        try:
            infos = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in given.items()
            ]
        except ValueError as error:  # of a dtype that ONNX lacks
            raise InputError(f"{node.op_type}: {error}") from None
        outputs = []
        unknown: list[Any] = [(None, ())] * len(node.output)
        for n, (dtype, shape) in zip(node.output, outputs_info or unknown):
            if dtype is None:
                outputs.append(onnx.ValueInfoProto(name=n))
            else:
                code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                outputs.append(helper.make_tensor_value_info(n, code, shape))
        graph = helper.make_graph([node], node.op_type, infos, [o for o in outputs if o.name])
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, ValueError):  # a kind that ONNX does not know
            return False


is_compatible = BurnishBackend.is_compatible
prepare = BurnishBackend.prepare
run_model = BurnishBackend.run_model
run_node = BurnishBackend.run_node
supports_device = BurnishBackend.supports_device
