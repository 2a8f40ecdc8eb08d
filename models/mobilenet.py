"""MobileNet v1 (Howard et al. 2017) and v2 (Sandler et al. 2018), width 1.0."""

from __future__ import annotations

import onnx

from .builder import AFTER_RELU, NetBuilder

# (output channels, stride of the depthwise convolution)
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
# (expansion, output channels, blocks, stride of the first block)
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v1(*, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """x (batch, 3, image, image) → probabilities (batch, 1000)."""
    net = NetBuilder("mobilenet_v1", seed)
    x = net.input("x", (batch, 3, image, image))
    x = _conv_bn(net, x, "features.0", (3, 32), 3, 2, gain=1.0)
    x = net.node("Relu", [x], "features.0")
    c_in = 32
    for index, (c_out, stride) in enumerate(_V1, start=1):
        scope = f"features.{index}"
        x = _conv_bn(net, x, f"{scope}.depthwise", (c_in, c_in), 3, stride, groups=c_in)
        x = net.node("Relu", [x], f"{scope}.depthwise")
        x = _conv_bn(net, x, f"{scope}.pointwise", (c_in, c_out), 1)
        x = net.node("Relu", [x], f"{scope}.pointwise")
        c_in = c_out
    x = net.node("GlobalAveragePool", [x], "avgpool")
    x = net.node("Flatten", [x], axis=1)
    x = net.linear(x, "classifier", (c_in, 1000))
    net.node("Softmax", [x], axis=1, outputs=[net.output("probabilities", (batch, 1000))])
    return net.model()


def mobilenet_v2(*, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """x (batch, 3, image, image) → logits (batch, 1000); ReLU6 is Clip(0, 6)."""
    net = NetBuilder("mobilenet_v2", seed)
    x = net.input("x", (batch, 3, image, image))
    x = _relu6(net, _conv_bn(net, x, "features.0", (3, 32), 3, 2, gain=1.0), "features.0")
    c_in, index = 32, 1
    for expansion, c_out, blocks, first_stride in _V2:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            x = _inverted_residual(net, x, f"features.{index}", (c_in, c_out), expansion, stride)
            c_in, index = c_out, index + 1
    scope = f"features.{index}"
    x = _relu6(net, _conv_bn(net, x, scope, (c_in, 1280), 1, gain=1.0), scope)
    x = net.node("GlobalAveragePool", [x], "avgpool")
    x = net.node("Flatten", [x], axis=1)
    net.linear(x, "classifier.1", (1280, 1000), outputs=[net.output("logits", (batch, 1000))])
    return net.model()


def _inverted_residual(
    net: NetBuilder, x: str, scope: str, channels: tuple[int, int], expansion: int, stride: int
) -> str:
    c_in, c_out = channels
    width = c_in * expansion
    y = x
    if expansion > 1:
        y = _relu6(net, _conv_bn(net, y, f"{scope}.expand", (c_in, width), 1, gain=1.0), f"{scope}.expand")
    y = _conv_bn(net, y, f"{scope}.depthwise", (width, width), 3, stride, groups=width)
    y = _relu6(net, y, f"{scope}.depthwise")
    y = _conv_bn(net, y, f"{scope}.project", (width, c_out), 1)
    return net.node("Add", [x, y], scope) if stride == 1 and c_in == c_out else y


def _conv_bn(
    net: NetBuilder,
    x: str,
    scope: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    gain: float = AFTER_RELU,
) -> str:
    x = net.conv(x, f"{scope}.conv", channels, kernel, stride, kernel // 2, groups, gain=gain)
    return net.batch_norm(x, f"{scope}.bn", channels[1])


def _relu6(net: NetBuilder, x: str, scope: str) -> str:
    low, high = net.constant(0.0, "float32", scope), net.constant(6.0, "float32", scope)
    return net.node("Clip", [x, low, high], scope)
