"""Whether a contestant's outputs are right: what they are held against, and how far off they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from ..compiler.ir.graph import interpret
from ..errors import BurnishError
from ..frontends.onnx.importer import import_onnx
from .peers import Network, OnnxRuntime

QUANTISED = 5e-2
"""Tolerance of networks that round to 8 bits: what falls on the other side of a tie is a whole step off."""


def least_tolerance(model: onnx.ModelProto) -> float:
    """What outputs may differ by in any precision."""
    quantised = any("Quantize" in n.op_type or "QLinear" in n.op_type for n in model.graph.node)
    return QUANTISED if quantised else 0.0


def reference_outputs(network: Network, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
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


def defined_outputs(network: Network, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray] | None:
    """By the operators' definitions in numpy; None where they are not known or take too much memory."""
    try:
        return interpret(import_onnx(network.model), inputs)
    except (BurnishError, MemoryError):
        return None


def relative_error(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], exact: bool = False
) -> float:
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


def wrong(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], error: float, limit: float
) -> str:
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
