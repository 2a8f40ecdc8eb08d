"""What a command works on: a module's file, a model's file, or the name of a network in the zoo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import InputError
from ..frontends.onnx.interface import fed_inputs, resolve_inputs
from ..frontends.onnx.tensors import onnx_dtype
from ..frontends.onnx.whole import read_whole
from ..models import zoo
from ..models.digits import WEIGHTS
from ..pipeline import Module, load
from ..pipeline import compile as compile_model
from .progress import show_progress


@dataclass(frozen=True)
class Source:
    """`path` is None for a network of the zoo, `proto` for a file."""

    name: str
    path: Path | None = None
    proto: onnx.ModelProto | None = None

    @property
    def is_module(self) -> bool:
        return self.path is not None and self.path.suffix == ".so"

    @property
    def model(self) -> Path | onnx.ModelProto:
        """What `pipeline.compile` takes; external data stays where it is."""
        return self.proto if self.proto is not None else Path(self.path or "")

    def read(self) -> onnx.ModelProto:
        """The whole model in memory, external data included. A copy, which may be changed."""
        model = onnx.ModelProto()
        if self.proto is not None:
            model.CopyFrom(self.proto)
            return model
        if self.is_module:
            raise InputError(f"{self.path} is a module; expected the ONNX model that it was compiled from")
        return read_whole(self.path or "")


def find_source(
    text: str,
    dims: Mapping[str, int] | None = None,
    only_model: bool = False,
    batch: int | None = None,
    values: Mapping[str, str] | None = None,
) -> Source:
    """A network of the zoo of this name, else a file (`./digits` is one). `only_model` refuses modules.

    `dims` are the sizes that will be given: digits keeps its open batch where one of them is for it. `batch`
    is for networks of the zoo alone, and is named where it is not 1. `values`: as of `fixed`.
    """
    found = _find(text, dims, only_model, batch)
    if not values:
        return found
    if found.is_module:
        raise InputError(f"{text} is compiled for its values: compile the model again for other ones")
    return Source(found.name, proto=fixed(found.read(), values))


def fixed(model: onnx.ModelProto, values: Mapping[str, str]) -> onnx.ModelProto:
    """The model, changed in place: the inputs named are constants. A value is a number, true, false, a list
    of such, or the name of a .npy file; InputError where it does not fit its input.
    """
    inputs = {info.name: info for info in model.graph.input}
    for name, text in values.items():
        if name not in inputs:
            raise InputError(
                f"--value is given for {name!r}; the inputs are {', '.join(sorted(inputs)) or 'none'}"
            )
        array = _value(name, text, inputs[name])
        resolve_inputs([inputs[name]], {}, {}, {name: array}, {})
        held = model.graph.initializer
        for n in [n for n, tensor in enumerate(held) if tensor.name == name]:
            del held[n]  # the input's default
        held.append(onnx.numpy_helper.from_array(array, name))
        model.graph.input.remove(inputs[name])
    constant_initializers(model)
    return model


def constant_initializers(model: onnx.ModelProto) -> None:
    """Initializers are no inputs, too, as files before version 4 have them."""
    model.ir_version = max(model.ir_version, 4)
    inputs = fed_inputs(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(inputs)


def load_npy(path: Path, dtype: np.dtype) -> np.ndarray:
    """The array, to be taken as `dtype`: files know no bfloat16 and keep it as two opaque bytes.

    InputError if it is no file of one array, OSError if it cannot be read.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # damaged files raise what their parts do
        raise InputError(f"{path} is not a .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an archive of arrays; expected one array")
    opaque = dtype.name == "bfloat16" and array.dtype == np.dtype("V2")
    return array.view(dtype) if opaque else array


def _value(name: str, text: str, info: onnx.ValueInfoProto) -> np.ndarray:
    """The array that a --value means, of the dtype that the input declares."""
    given = f"--value {name}={text}"
    dtype = onnx_dtype(info.type.tensor_type.elem_type, f"input {name!r}").numpy
    try:
        array = load_npy(Path(text), dtype) if text.endswith(".npy") else np.array(json.loads(text))
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{given}: expected a number, true, false, a list or a .npy file") from error
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        held = array.astype(dtype) if array.dtype.kind in "biuf" else None
    exact = dtype.kind not in "biu" or (held is not None and np.array_equal(held, array))
    if held is None or not exact or (array.dtype.kind == "b") != (dtype.kind == "b"):
        raise InputError(f"{given}: the input holds {dtype}, which this is not")
    return held


def _find(text: str, dims: Mapping[str, int] | None, only_model: bool, batch: int | None) -> Source:
    if text == "digits" and "batch" in (dims or {}):
        if batch is not None:
            raise InputError("digits: its batch is given by --batch and by --dim; expected one of them")
        return Source(text, proto=onnx.load(WEIGHTS))
    if text in zoo.names():
        name = f"{text} batch {batch}" if (batch or 1) > 1 else text
        return Source(name, proto=zoo.build(text, batch=batch or 1))
    if batch is not None:
        raise InputError(
            f"--batch is for networks of the zoo, not for {text}: fix its sizes with --dim or --shape"
        )
    path = Path(text)
    if path.is_file():
        source = Source(path.stem, path)
        if path.suffix == ".a":
            raise InputError(
                f"{path} is an archive to link into an application; compile the model to a .so to run it here"
            )
        if only_model and source.is_module:
            raise InputError(f"{path} is a compiled module; expected an ONNX model")
        return source
    if path.exists():
        raise InputError(f"{path} is not a file; expected a module (.so), an ONNX model, or a zoo name")
    raise InputError(
        f"there is no file {text!r}, and no network of that name in the zoo (`burnish zoo` lists them)"
    )


def open_module(
    source: Source,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    threads: int | None = None,
    **options: Any,
) -> Module:
    """The module of a file, or compiled with `options` of `pipeline.compile`; progress on standard error."""
    if source.is_module:
        if shapes or dims:
            raise InputError(
                f"{source.path} is compiled for its shapes: compile the model again for other ones"
            )
        if options.get("target", "host") != "host":
            raise InputError(f"{source.path} is compiled for its target: compile the model again for another")
        return load(source.path or "", threads)
    with show_progress() as progress:
        return compile_model(
            source.model, shapes=shapes, dims=dims, threads=threads, progress=progress, **options
        )


def random_feeds(source: Source, infos: Sequence[Any], seed: int) -> dict[str, np.ndarray]:
    """Seeded arrays for a module's inputs, `infos`; where the model is known, its indices are valid."""
    model = onnx.ModelProto() if source.is_module else _light(source)
    del model.graph.input[:]
    for info in infos:
        code = onnx.helper.np_dtype_to_tensor_dtype(info.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(info.name, code, info.shape))
    names = {info.name for info in infos}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return zoo.random_inputs(model, seed)


def _light(source: Source) -> onnx.ModelProto:
    """A copy of the model without external data."""
    if source.path is not None:
        return onnx.load(str(source.path), format="protobuf", load_external_data=False)
    return source.read()


def static_model(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> onnx.ModelProto:
    """The model, changed in place: sizes of inputs, and of outputs that share their names, are fixed. What it
    holds is constant for all contestants: onnxruntime folds nothing that an input may override."""
    constant_initializers(model)
    inputs = fed_inputs(model.graph)
    types, known = resolve_inputs(inputs, shapes, dims, {}, {})
    for value in inputs:
        type = types[value.name]
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, type.dtype.code, type.dims))
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_value = known[dim.dim_param]
    return model
