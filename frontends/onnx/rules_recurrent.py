"""Import of recurrent layers."""

from __future__ import annotations

from ...compiler.ops.recurrence import Activation
from ...compiler.ops.recurrent import DIRECTIONS, GRU, LSTM, RNN
from ...errors import ModelError
from .registry import NodeContext, onnx

ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("relu", ()),
    "tanh": ("tanh", ()),
    "sigmoid": ("sigmoid", ()),
    "affine": ("affine", (1.0, 0.0)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "elu": ("elu", (1.0,)),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
}
"""ONNX's name in lower case → our function, defaults of its alpha and beta."""


def activations(c: NodeContext, defaults: tuple[str, ...]) -> tuple[Activation, ...]:
    """Each takes the next alpha and beta of the node's lists if it has such a parameter."""
    count = len(DIRECTIONS.get(c.attr("direction", "forward"), (False,)))
    names = c.attr("activations") or list(defaults) * count
    if len(defaults) == 1 and list(names) == ["Tanh"] * 2:  # RNN's default in ONNX, whatever its directions
        names = names[:count]
    if len(names) != len(defaults) * count:
        raise ModelError(f"{c.label}: {len(names)} activations, expected {len(defaults) * count}")
    alphas, betas = list(c.attr("activation_alpha") or ()), list(c.attr("activation_beta") or ())
    result: list[Activation] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise ModelError(f"{c.label}: unknown activation {name!r}")
        function, parameters = ACTIVATIONS[name.lower()]
        lists = (alphas, betas)[: len(parameters)]
        result.append((function, *(v.pop(0) if v else d for v, d in zip(lists, parameters))))
    return tuple(result)


def common(
    c: NodeContext, r: str, defaults: tuple[str, ...]
) -> tuple[tuple[Activation, ...], str, float, bool]:
    """The fields that all layers share; `hidden_size` must agree with the weights."""
    hidden = c.attr("hidden_size")
    if hidden is not None and c.type(r).dims[-1:] != (hidden,):
        raise ModelError(f"{c.label}: hidden_size is {hidden}, but the recurrent weights are {c.type(r)}")
    clip = float(c.attr("clip", 0.0))
    return activations(c, defaults), c.attr("direction", "forward"), clip, bool(c.attr("layout", 0))


@onnx("LSTM")
def lstm(c: NodeContext, x: str, w: str, r: str, *rest: str | None) -> tuple[str, ...]:
    fields = common(c, r, ("sigmoid", "tanh", "tanh"))
    return c.emit(LSTM(*fields, bool(c.attr("input_forget", 0))), x, w, r, *rest)


@onnx("GRU")
def gru(c: NodeContext, x: str, w: str, r: str, *rest: str | None) -> tuple[str, ...]:
    fields = common(c, r, ("sigmoid", "tanh"))
    return c.emit(GRU(*fields, bool(c.attr("linear_before_reset", 0))), x, w, r, *rest)


@onnx("RNN")
def rnn(c: NodeContext, x: str, w: str, r: str, *rest: str | None) -> tuple[str, ...]:
    return c.emit(RNN(*common(c, r, ("tanh",))), x, w, r, *rest)
