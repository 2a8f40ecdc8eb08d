"""The deep Q-network that plays Atari games (Mnih et al. 2015)."""

from __future__ import annotations

import onnx

from .builder import AFTER_RELU, NetBuilder

_CONVS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # (channels, kernel, stride)
ACTIONS = 18


def dqn(*, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """frames (batch, 4, image, image) → q_values (batch, 18)."""
    net = NetBuilder("dqn", seed)
    x = net.input("frames", (batch, 4, image, image))
    c_in, side = 4, image
    for index, (c_out, kernel, stride) in enumerate(_CONVS, start=1):
        gain = 1.0 if index == 1 else AFTER_RELU
        x = net.conv(x, f"conv{index}", (c_in, c_out), kernel, stride, bias=True, gain=gain)
        x = net.node("Relu", [x], f"relu{index}")
        c_in, side = c_out, (side - kernel) // stride + 1
    x = net.node("Flatten", [x], axis=1)
    x = net.linear(x, "fc1", (c_in * side * side, 512), gain=AFTER_RELU)
    x = net.node("Relu", [x], "relu4")
    net.linear(x, "fc2", (512, ACTIONS), gain=AFTER_RELU, outputs=[net.output("q_values", (batch, ACTIONS))])
    return net.model()
