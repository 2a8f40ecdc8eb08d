"""A class of the shape of onnxruntime.InferenceSession, for a switch in one line:

session = burnish.InferenceSession("model.onnx")
y, = session.run(None, {"x": x})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .errors import InputError
from .frontends.onnx.interface import fed_inputs, is_fixed
from .frontends.onnx.tensors import native, numpy_dtype
from .frontends.onnx.whole import read_whole
from .onnx_backend import BurnishRep
from .pipeline import compile as compile_model
from .pipeline import load
from .runtime.binding import TensorInfo

_NAMES = {"float32": "float", "float64": "double"}
CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its type as onnxruntime writes it, and its shape (open sizes by name)."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMeta:
    """What a model says of itself; a module's file knows its own name alone."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass
class SessionOptions:
    """What counts of onnxruntime's, where none are given."""

    intra_op_num_threads: int = 0


class InferenceSession:
    """A model, compiled when it is opened; one with open sizes for each shape that it meets; the latest stay.

    `path_or_bytes` is an .onnx file, its bytes, or a module's .so. Of `sess_options` only
    `intra_op_num_threads` counts (0: all cores); `providers` may name only CPUExecutionProvider, and
    `provider_options` and onnxruntime's further options mean nothing to it. There is no io_binding, and there
    are no OrtValues: a module's context binds arrays (`burnish.load`).
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **further: Any,
    ):
        _check_providers(providers)
        self._options = SessionOptions() if sess_options is None else sess_options
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        if isinstance(path_or_bytes, os.PathLike):
            path_or_bytes = os.fsdecode(path_or_bytes)
        if isinstance(path_or_bytes, str) and Path(path_or_bytes).suffix == ".so":
            module = load(path_or_bytes, threads)
            self._inputs = [_arg(info.name, info.dtype, list(info.shape)) for info in module.inputs]
            self._outputs = [_arg(info.name, info.dtype, list(info.shape)) for info in module.outputs]
            self._call = lambda feed: module.run(feed)
            self._dtypes = {info.name: info.dtype for info in module.inputs}
            self._meta = ModelMeta(graph_name=Path(path_or_bytes).stem)
            return
        model = read_whole(path_or_bytes)
        self._meta = ModelMeta(
            *(model.producer_name, model.graph.name, model.domain, model.doc_string),
            model.graph.doc_string,
            model.model_version if model.HasField("model_version") else 2**63 - 1,  # as onnxruntime says it
            {p.key: p.value for p in model.metadata_props},
        )
        self._inputs = [_declared(value) for value in fed_inputs(model.graph)]
        self._dtypes = {value.name: _dtype(value) for value in model.graph.input}
        rep = BurnishRep(model, partial(compile_model, threads=threads))
        made = {info.name: info for info in rep.module.outputs} if rep.module else {}
        self._outputs = [_declared(value, made.get(value.name)) for value in model.graph.output]
        names = [output.name for output in self._outputs]
        self._call = lambda feed: dict(zip(names, rep.run(feed)))

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CPU: {}}

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are constants."""
        return []

    def get_modelmeta(self) -> ModelMeta:
        return self._meta

    def get_session_options(self) -> Any:
        return self._options

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """The named outputs, or all of them. Lists become arrays of what the input declares. InputError for a
        wrong name, shape or dtype."""
        known = {arg.name for arg in self._inputs}
        if not isinstance(input_feed, Mapping):
            found = type(input_feed).__name__
            raise InputError(f"input_feed: expected a dict of arrays by name, found {found}")
        _check_names(output_names)
        for name in input_feed:
            if name not in known:
                raise InputError(f"there is no input {name!r}; expected {', '.join(sorted(known)) or 'none'}")
        wanted = output_names or [arg.name for arg in self._outputs]
        made = {arg.name for arg in self._outputs}
        for name in wanted:
            if name not in made:
                raise InputError(f"there is no output {name!r}; expected {', '.join(sorted(made))}")
        results = self._call({name: self._array(name, value) for name, value in input_feed.items()})
        return [results[name] for name in wanted]

    def _array(self, name: str, value: Any) -> Any:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return value  # of another library, perhaps on a GPU
        try:
            if isinstance(value, (list, tuple)):
                return np.array(value, self._dtypes[name])
            return native(value)
        except (ValueError, TypeError, OverflowError) as error:
            wanted, found = self._dtypes[name], type(value).__name__
            raise InputError(f"input {name!r}: expected {wanted}, found a {found}: {error}") from None


def _check_providers(providers: Any) -> None:
    """As onnxruntime takes them: names, or pairs of a name and options."""
    if providers is None:
        return
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise InputError(f"providers: expected a list of names, found {providers!r}")
    names = [p[0] if isinstance(p, (tuple, list)) and p else p for p in providers]
    if names and CPU not in names:
        raise InputError(f"provider {names[0]!r}: Burnish has only {CPU}; leave out `providers`, or name it")


def _check_names(names: Any) -> None:
    if names is None:
        return
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if wrong := [n for n in names if not isinstance(n, str)] if listed else [names]:
        found = type(wrong[0]).__name__
        raise InputError(f"output_names: expected a list of names or None, found {found}")


def _arg(name: str, dtype: np.dtype, shape: list[int | str | None]) -> NodeArg:
    return NodeArg(name, f"tensor({_NAMES.get(dtype.name, dtype.name)})", shape)


def _declared(value: onnx.ValueInfoProto, made: TensorInfo | None = None) -> NodeArg:
    """As the file says; where that leaves it open, what was `made` of it."""
    tensor = value.type.tensor_type
    if made is not None and not (tensor.elem_type and tensor.HasField("shape")):
        return _arg(made.name, made.dtype, list(made.shape))
    sizes = [d.dim_value if is_fixed(d) else d.dim_param or None for d in tensor.shape.dim]
    return _arg(value.name, _dtype(value), list(sizes))


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return numpy_dtype(value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT, repr(value.name))
