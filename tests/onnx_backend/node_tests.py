"""ONNX's own node tests, run through the backend interface one by one."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.errors import BurnishError, InternalError
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.fold import fold
from burnish.graph_passes.simplify import simplify
from burnish.onnx_backend import BurnishRep, prepare
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

PASSING = Path(__file__).with_name("passing.txt")
SECONDS = 60
MODES = ("compiled", "reference")


@dataclass(frozen=True)
class Outcome:
    """kind: "pass", "unsupported" (a typed error that names node or operator), "wrong", "crash", or
    "inexact": outside ONNX's tolerance, but within 4 roundings of the largest output. ONNX allows 1e-7 beside
    sums of any size, and one rounding of a f16 after any number of operators.
    """

    name: str
    kind: str
    detail: str = ""


class Interpreted:
    """A module that runs its graph by the operators' references."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name in self.graph.inputs:
            type = self.graph.types[name]
            assert (inputs[name].dtype, inputs[name].shape) == (type.dtype.numpy, type.dims)
        with np.errstate(all="ignore"):
            return interpret(self.graph, inputs)


def compile_reference(model: onnx.ModelProto, **options: Any) -> Interpreted:
    """Import and graph passes, no code: measures what the importer and the references cover."""
    imported = import_onnx(model, **options)
    verify(imported)
    graph = simplify(fold(imported))
    verify(graph)
    return Interpreted(graph)


def prepare_reference(model: onnx.ModelProto) -> BurnishRep:
    return BurnishRep(model, compile=compile_reference)


Prepare = Callable[[onnx.ModelProto], BurnishRep]


def preparing(mode: str, target: str) -> Prepare:
    """How models are prepared: "reference" or "compiled", the latter for a target."""
    return prepare_reference if mode == "reference" else partial(prepare, target=target)


@lru_cache
def cases() -> dict[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def own() -> list[str]:
    """Those listed of operators themselves, not of what ONNX says that they are made of."""
    return [name for name in passing() if "_expanded" not in name]


def passing() -> list[str]:
    return PASSING.read_text().split() if PASSING.exists() else []


class TimeLimitError(Exception):
    pass


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeLimitError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_case(case: TestCase, prepare: Prepare, seconds: int = SECONDS) -> Outcome:
    try:
        with time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rep = prepare(case.model)
            for inputs, outputs in case.data_sets:
                expected = [_plain(e) for e in outputs]
                actual = list(rep.run([_plain(i) for i in inputs]))
                Runner.assert_similar_outputs(expected, actual, case.rtol, case.atol, case.model_dir)
    except AssertionError as error:
        kind = "inexact" if _within_roundings(expected, actual) else "wrong"
        return Outcome(case.name, kind, _one_line(error))
    except InternalError as error:
        return Outcome(case.name, "crash", f"InternalError: {_one_line(error)}")
    except BurnishError as error:
        return _typed(case, error)
    except Exception as error:
        return Outcome(case.name, "crash", f"{type(error).__name__}: {_one_line(error)}")
    return Outcome(case.name, "pass")


def _typed(case: TestCase, error: BurnishError) -> Outcome:
    detail = f"{type(error).__name__}: {_one_line(error)}"
    if error.__cause__ is not None and not isinstance(error.__cause__, BurnishError):
        return Outcome(case.name, "crash", detail)
    return Outcome(case.name, "unsupported", detail)


def _within_roundings(expected: list[Any], actual: list[Any]) -> bool:
    for e, a in zip(expected, actual, strict=True):
        if (a.dtype, a.shape) != (e.dtype, e.shape) or a.dtype.kind in "biuOU":
            return False
        eps, wide = float(ml_dtypes.finfo(a.dtype).eps), e.astype(np.float64)
        scale = np.abs(wide[np.isfinite(wide)]).max(initial=0)
        if not np.allclose(a.astype(np.float64), wide, 4 * eps, 4 * eps * scale, equal_nan=True):
            return False
    return True


def _plain(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
