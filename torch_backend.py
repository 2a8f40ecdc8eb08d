"""`torch.compile(model, backend="burnish")`: what torch traces becomes an ONNX model, and that a module.

model = torch.compile(model.eval(), backend="burnish", options={"threads": 2})   # options of burnish.compile
with torch.inference_mode():
    scores = model(images)

torch finds this by the package's entry point; it needs onnxscript, too (`pip install burnish[torch]`). A
graph is compiled when it first meets tensors of their shapes, for the GPU where they are on one. Weights are
constants: where they were changed or replaced, it is compiled anew (not where they were changed in place by
way of `.data`, which torch itself does not notice). What wants gradients is run by torch itself.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import ToolError, UnsupportedError
from .pipeline import compile as compile_model

KEPT = 8
"""Modules of a graph, one for each set of shapes; the one that was used longest ago goes first."""

Run = Callable[[Sequence[Any]], tuple[Any, ...]]


def backend(
    graph: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """What runs a `torch.fx.GraphModule` in its place. `mode` is torch's, and means nothing here."""
    return _Traced(graph, dict(options or {}))


class _Traced:
    """A graph and its modules."""

    def __init__(self, graph: Any, options: dict[str, Any]):
        self._graph, self._options = graph, options
        self._own = [*graph.parameters(), *graph.buffers()]
        self._modules: dict[tuple[Any, ...], tuple[tuple[Any, ...], Run, list[Any]]] = {}
        self._lock = threading.Lock()
        self._warned = False

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        import torch

        wants_gradients = (isinstance(a, torch.Tensor) and a.requires_grad for a in (*arguments, *self._own))
        if torch.is_grad_enabled() and any(wants_gradients):
            if not self._warned:
                message = "torch itself runs what wants gradients; call the model in torch.inference_mode()"
                warnings.warn(f"burnish: {message}", stacklevel=2)
            self._warned = True
            result: tuple[Any, ...] = self._graph(*arguments)
            return result
        return self._compiled(arguments)(arguments)

    def _compiled(self, arguments: Sequence[Any]) -> Run:
        """The module for these shapes and weights. It keeps the weights alive: the key is their address."""
        weights = [a for a in (*arguments, *self._own) if _is_weight(a)]
        shapes, values = tuple(map(_shape, arguments)), tuple((w.data_ptr(), w._version) for w in weights)
        with self._lock:
            known = self._modules.pop(shapes, None)
            if known is None or known[0] != values:
                known = values, self._compile(arguments), [w.detach() for w in weights]
            self._modules[shapes] = known
            if len(self._modules) > KEPT:
                del self._modules[next(iter(self._modules))]
            return known[1]

    def _compile(self, arguments: Sequence[Any]) -> Run:
        import torch

        varying = [n for n, a in enumerate(arguments) if isinstance(a, torch.Tensor) and not _is_weight(a)]
        model, results = _exported(self._graph, arguments, varying)
        device = _device(a for a in (*arguments, *self._own) if isinstance(a, torch.Tensor))
        target = "cuda" if device.type == "cuda" else "host"
        module = compile_model(model, **{"target": target, **self._options})
        positions = dict(zip((info.name for info in model.graph.input), varying, strict=True))
        outputs = [output.name for output in model.graph.output]

        def run(now: Sequence[Any]) -> tuple[Any, ...]:
            made = {
                i.name: torch.empty(i.shape, dtype=getattr(torch, i.dtype.name), device=device)
                for i in module.outputs
            }
            module.run({name: _placed(now[n]) for name, n in positions.items()}, out=made)
            tensors = iter(outputs)
            return tuple(made[next(tensors)].to(r.device) if isinstance(r, _Tensor) else r for r in results)

        return run


VECTOR_BYTES = 16  # at whose multiples a GPU's kernels expect their operands


@dataclass(frozen=True)
class _Tensor:
    """Among what a graph returns: not known when it is compiled, but for where it lies."""

    device: Any


def _device(tensors: Iterable[Any]) -> Any:
    """A GPU where any of them is there, as torch itself computes."""
    import torch

    devices = {tensor.device for tensor in tensors}
    return next((d for d in devices if d.type == "cuda"), torch.device("cpu"))


def _placed(argument: Any) -> Any:
    """As kernels read it: without gaps, and where the device reads vectors."""
    dense = argument.detach().contiguous()
    return dense.clone() if dense.is_cuda and dense.data_ptr() % VECTOR_BYTES else dense


def _is_weight(value: Any) -> bool:
    """Whether torch takes it from a module, a parameter or a buffer, and says when it changes."""
    import torch

    if not isinstance(value, torch.Tensor) or value.is_inference():
        return False
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _shape(argument: Any) -> Any:
    """What a module is compiled for beside values of weights."""
    import torch

    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.shape, argument.dtype, argument.device.type, _is_weight(argument)


def _exported(graph: Any, arguments: Sequence[Any], varying: Sequence[int]) -> tuple[Any, list[Any]]:
    """The ONNX model of a graph whose arguments are constants, but for those at the positions; and for each
    of its results the constant that it is, or a _Tensor."""
    import torch

    known: list[Any] = []

    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = graph
            self.rest = [a for n, a in enumerate(arguments) if n not in set(varying)]
            for n, argument in enumerate(self.rest):
                if isinstance(argument, torch.Tensor):
                    self.register_buffer(f"constant{n}", argument.detach())

        def forward(self, *inputs: Any) -> Any:
            given, rest = iter(inputs), iter(enumerate(self.rest))

            def constant() -> Any:
                n, argument = next(rest)
                return getattr(self, f"constant{n}", argument)

            every = [next(given) if n in set(varying) else constant() for n in range(len(arguments))]
            results = self.graph(*every)
            known[:] = [_Tensor(r.device) if isinstance(r, torch.Tensor) else r for r in results]
            return tuple(r for r in results if isinstance(r, torch.Tensor))

    inputs = tuple(arguments[n].detach() for n in varying)
    with torch.no_grad(), _quiet(logging.getLogger("torch.onnx")):
        program = torch.export.export(Fixed(), inputs, strict=False).run_decompositions()
        signature = program.graph_signature
        changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
        if changed:
            what = next(iter(changed.values()))
            raise UnsupportedError(f"the model changes {what!r} in place, as in training; call model.eval()")
        try:
            found: Any = torch.onnx.export(program, inputs, dynamo=True, verbose=False)
        except ModuleNotFoundError as error:
            raise ToolError(f"{error.name} is not installed: pip install burnish[torch]") from None
    return found.model_proto, known


_QUIET = threading.Lock()  # or two that restore it would cross


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """It tells of every package that is not there."""
    with _QUIET:
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
