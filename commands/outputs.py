"""Whether a contestant's outputs are right: what they are held against, and how far off they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from ..compiler.ir.graph import interpret
from ..errors import BurnishError
from ..frontends.onnx.importer import import_onnx
from ..frontends.onnx.read_model import all_nodes, subgraphs
from .peers import Network, OnnxRuntime
from .peers.base import PRECISION_TOLERANCE

Arrays = Mapping[str, np.ndarray]

DTYPE_TOLERANCE = {"float32": PRECISION_TOLERANCE["f32"], "float64": 1e-9, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest right difference, relative to a tensor's largest absolute value. Others round narrow floats after
every operator, Burnish after every fused one. Integers and bools must be equal."""
QUANTISED = 5e-2
"""Tolerance of networks that round to 8 bits: what falls on the other side of a tie is a whole step off."""


def least_tolerance(model: onnx.ModelProto) -> float:
    """What outputs may differ by in any precision, since the network itself rounds to 8 or 16 bits."""
    nodes = [node for node, _, _ in all_nodes(model)]
    graphs = [model.graph, *(graph for node in nodes for graph in subgraphs(node))]
    types = {info.type.tensor_type.elem_type for g in graphs for info in (*g.input, *g.output)}
    types |= {tensor.data_type for graph in graphs for tensor in graph.initializer}
    types |= {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    narrow = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    found = [DTYPE_TOLERANCE[narrow[type]] for type in types if type in narrow]
    found += [QUANTISED for node in nodes if "Quantize" in node.op_type or "QLinear" in node.op_type]
    return max(found, default=0.0)


def reference_outputs(network: Network, inputs: Arrays) -> dict[str, np.ndarray] | None:
    """onnxruntime's, without optimisation; None where it is not installed or cannot run the network."""
    reference = OnnxRuntime()
    if reference.available() is not None:
        return None
    try:
        runner = reference.reference(network)
        outputs = runner.run(inputs)
        runner.close()
    except Exception:  # an operator that onnxruntime lacks: the rows are shown as unchecked
        return None
    return outputs


def defined_outputs(network: Network, inputs: Arrays) -> Arrays | None:
    """By the operators' definitions in numpy; None where they are not known or take too much memory."""
    try:
        return interpret(import_onnx(network.model), inputs)
    except (BurnishError, MemoryError):
        return None


def judged_error(
    found: Arrays, expected: Arrays, limit: float, exact: bool, judge: Callable[[], Arrays | None]
) -> float:
    """`relative_error`. What differs by more than the limit is held against what `judge` gives, where that is
    known, too: onnxruntime takes shortcuts."""
    error = relative_error(found, expected, exact)
    if error <= limit or (defined := judge()) is None:
        return error
    by_definition = relative_error(found, defined, exact)
    return by_definition if by_definition <= limit else error


def relative_error(found: Arrays, expected: Arrays, exact: bool = False) -> float:
    """The largest difference over all outputs, relative to the output's largest absolute expected value.

    A difference in shape, or a NaN or infinity on one side only, is infinite; where integers and bools are to
    be `exact`, any of theirs is.
    """
    worst = 0.0
    for name, want in expected.items():
        have = found.get(name)
        if have is None or have.shape != want.shape:
            return float("inf")
        if exact and want.dtype.kind in "iub" and not np.array_equal(have, want):
            return float("inf")
        a, b = have.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            a, b = a[finite], b[finite]
            difference = float(np.abs(a - b).max()) / (float(np.abs(b).max()) or 1.0)
            worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst


def wrong(found: Arrays, expected: Arrays, error: float, limit: float) -> str:
    """How outputs that differ too much do so, in a line."""
    for name, want in expected.items():
        if name not in found:
            return f"wrong: no output '{name}'"
        if found[name].shape != want.shape:
            return f"wrong: output '{name}' is {found[name].shape}; expected {want.shape}"
        if want.dtype.kind in "iub" and np.isinf(error) and not np.array_equal(found[name], want):
            return f"wrong: output '{name}', {want.dtype}, is not equal"
    return f"wrong: differs by {error:.1e} of scale (at most {limit:.0e} is right)"


def reason_of(error: BaseException | str) -> str:
    """Why a row failed, in a line; an error that is not of Burnish's own is named."""
    own = isinstance(error, (str, BurnishError))
    text = str(error) if own else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
