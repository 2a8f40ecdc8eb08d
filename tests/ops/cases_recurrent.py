"""Cases of compiler/ops/recurrence.py and recurrent.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.base import Op
from burnish.compiler.ops.packed_recurrence import PackedGru, PackedLstm, PackedRnn
from burnish.compiler.ops.recurrence import (
    SIGMOID,
    TANH,
    Activation,
    GruRecurrence,
    LstmRecurrence,
    RnnRecurrence,
)
from burnish.compiler.ops.recurrent import GRU, LSTM, RNN

from .case import Case, Spec

LENGTHS = np.array([3, 0, 5], np.int32)
BEYOND = np.array([-2, 7, 1], np.int32)


def loop_case(
    op: Op, gates: int, optional: tuple[str, ...] = (), lengths: np.ndarray | None = None, t: str = "f32"
) -> Case:
    """5 steps of 3 rows, 7 hidden; `optional` are the roles that are present."""
    shapes = {"h0": f"{t}[3,7]", "c0": f"{t}[3,7]", "peephole": f"{t}[21]", "bias": f"{t}[7]"}
    roles = type(op).roles[2:-1]  # type: ignore[attr-defined]
    rest: tuple[Spec, ...] = tuple(shapes[r] if r in optional else None for r in roles)
    inputs = (f"{t}[5,3,{gates * 7}]", f"{t}[{gates * 7},7]", *rest, lengths)
    return Case(
        op, inputs, "" if lengths is None else f"lengths {lengths.tolist()}", low=-1, high=1, widen=20
    )


def layer_case(
    op: Op, gates: int, count: int, roles: tuple[str, ...], lengths: np.ndarray | None = None, t: str = "f32"
) -> Case:
    """5 steps of 3 rows of 4 inputs, 6 hidden."""
    first = (
        (f"{t}[3,5,4]", f"{t}[3,{count},6]")
        if op.attributes()["batch_first"]
        else (f"{t}[5,3,4]", f"{t}[{count},3,6]")
    )
    shapes: dict[str, Spec] = {
        "x": first[0], "w": f"{t}[{count},{gates * 6},4]", "r": f"{t}[{count},{gates * 6},6]",
        "bias": f"{t}[{count},{2 * gates * 6}]", "lengths": lengths, "h0": first[1], "c0": first[1],
        "peephole": f"{t}[{count},18]",
    }  # fmt: skip
    present = ("x", "w", "r", "lengths", *roles)
    inputs = tuple(shapes[r] if r in present else None for r in type(op).roles)  # type: ignore[attr-defined]
    return Case(op, inputs, "" if lengths is None else "lengths", low=-1, high=1, widen=40)


LSTM_ACTIVATIONS: tuple[Activation, ...] = (SIGMOID, TANH, TANH)
ODD: tuple[Activation, ...] = (("hard_sigmoid", 0.3, 0.4), ("scaled_tanh", 0.7, 1.3), ("affine", 0.5, 0.1))
ALL = ("h0", "c0", "peephole", "bias")

CASES = [
    loop_case(LstmRecurrence(), 4),
    loop_case(LstmRecurrence(), 4, ALL),
    loop_case(LstmRecurrence(reverse=True), 4, ("h0",), LENGTHS),
    loop_case(LstmRecurrence(), 4, ALL, BEYOND),
    loop_case(LstmRecurrence(ODD, clip=0.5), 4, ALL),
    loop_case(LstmRecurrence(input_forget=True), 4, ("c0",)),
    loop_case(LstmRecurrence(), 4, ALL, LENGTHS, "f64"),
    loop_case(GruRecurrence(), 3),
    loop_case(GruRecurrence(reverse=True), 3, ("h0",), LENGTHS),
    loop_case(GruRecurrence(linear_before_reset=True), 3, ("h0", "bias")),
    loop_case(GruRecurrence(linear_before_reset=True, clip=0.3), 3),
    loop_case(GruRecurrence((("leaky_relu", 0.1), ("softsign",))), 3, ("h0",), BEYOND),
    loop_case(RnnRecurrence(), 1),
    loop_case(RnnRecurrence((("elu", 0.5),), True, 0.7), 1, ("h0",), LENGTHS),
    *(
        loop_case(RnnRecurrence((a,)), 1, ("h0",))
        for a in (("relu",), ("thresholded_relu", 0.2), ("softplus",), SIGMOID)
    ),
    layer_case(LSTM(LSTM_ACTIVATIONS), 4, 1, ("bias",)),
    layer_case(LSTM(LSTM_ACTIVATIONS, "reverse", 0.5, False, True), 4, 1, ALL, LENGTHS),
    layer_case(LSTM(LSTM_ACTIVATIONS + ODD, "bidirectional"), 4, 2, ALL, LENGTHS),
    layer_case(LSTM(LSTM_ACTIVATIONS * 2, "bidirectional", batch_first=True), 4, 2, ALL),
    layer_case(LSTM(LSTM_ACTIVATIONS), 4, 1, ("bias", "h0"), t="f16"),
    layer_case(GRU((SIGMOID, TANH)), 3, 1, ()),
    layer_case(
        GRU((SIGMOID, TANH) * 2, "bidirectional", linear_before_reset=True), 3, 2, ("bias", "h0"), LENGTHS
    ),
    layer_case(GRU((SIGMOID, TANH), "reverse", batch_first=True), 3, 1, ("bias", "h0")),
    layer_case(GRU((SIGMOID, TANH), linear_before_reset=True), 3, 1, ("bias",), t="bf16"),
    layer_case(RNN((TANH,)), 1, 1, ("bias",)),
    layer_case(RNN((TANH, ("relu",)), "bidirectional", batch_first=True), 1, 2, ("bias", "h0"), LENGTHS),
    Case(PackedLstm(), ("f32[3,2,44]", "f32[2,11,4,8]", "f32[2,11]", "f32[2,11]")),
    Case(PackedLstm(reverse=True, clip=0.5), ("f32[4,1,12]", "f32[1,3,4,4]")),
    Case(PackedLstm(), ("f32[3,1,20]", "f32[2,5,4,4]", None, "f32[1,5]", "f32[15]")),
    Case(PackedRnn(), ("f32[3,2,9]", "f32[2,9,1,8]", "f32[2,9]")),
    Case(PackedGru(), ("f32[3,2,27]", "f32[2,9,3,8]", "f32[2,9]")),
    Case(PackedGru(linear_before_reset=True), ("f32[4,1,21]", "f32[2,7,3,4]", None, "f32[7]")),
    Case(PackedGru(reverse=True, linear_before_reset=True), ("f32[2,3,21]", "f32[2,7,3,4]")),
]
