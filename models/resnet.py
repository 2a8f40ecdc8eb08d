"""ResNet-18, -34 and -50 (He et al. 2015), a bottleneck's stride in its 3×3 convolution ("v1.5")."""

from __future__ import annotations

import onnx

from .builder import AFTER_RELU, NetBuilder

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
# A residual branch adds little to its trunk, so that 16 blocks in a row keep the activations' scale.
_BRANCH_GAIN = 0.5


def resnet(depth: int, *, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """x (batch, 3, image, image) → logits (batch, 1000); depth is 18, 34 or 50."""
    net = NetBuilder(f"resnet{depth}", seed)
    x = net.input("x", (batch, 3, image, image))
    x = _conv_bn(net, x, "conv1", "bn1", (3, 64), 7, stride=2, pad=3, conv_gain=1.0)
    x = net.node("Relu", [x], "relu")
    x = net.node("MaxPool", [x], "maxpool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    expansion = 4 if depth == 50 else 1
    block = _bottleneck if depth == 50 else _basic
    c_in = 64
    for stage, blocks in enumerate(_BLOCKS[depth]):
        width = 64 << stage
        for index in range(blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(net, x, f"layer{stage + 1}.{index}", c_in, width, stride)
            c_in = width * expansion
    x = net.node("GlobalAveragePool", [x], "avgpool")
    x = net.node("Flatten", [x], axis=1)
    net.linear(x, "fc", (c_in, 1000), outputs=[net.output("logits", (batch, 1000))])
    return net.model()


def _basic(net: NetBuilder, x: str, scope: str, c_in: int, width: int, stride: int) -> str:
    y = _conv_bn(net, x, f"{scope}.conv1", f"{scope}.bn1", (c_in, width), 3, stride, 1)
    y = net.node("Relu", [y], f"{scope}.relu")
    y = _conv_bn(net, y, f"{scope}.conv2", f"{scope}.bn2", (width, width), 3, 1, 1, _BRANCH_GAIN)
    y = net.node("Add", [y, _shortcut(net, x, scope, c_in, width, stride)], scope)
    return net.node("Relu", [y], f"{scope}.relu")


def _bottleneck(net: NetBuilder, x: str, scope: str, c_in: int, width: int, stride: int) -> str:
    y = _conv_bn(net, x, f"{scope}.conv1", f"{scope}.bn1", (c_in, width), 1)
    y = net.node("Relu", [y], f"{scope}.relu")
    y = _conv_bn(net, y, f"{scope}.conv2", f"{scope}.bn2", (width, width), 3, stride, 1)
    y = net.node("Relu", [y], f"{scope}.relu")
    y = _conv_bn(net, y, f"{scope}.conv3", f"{scope}.bn3", (width, width * 4), 1, gain=_BRANCH_GAIN)
    y = net.node("Add", [y, _shortcut(net, x, scope, c_in, width * 4, stride)], scope)
    return net.node("Relu", [y], f"{scope}.relu")


def _shortcut(net: NetBuilder, x: str, scope: str, c_in: int, c_out: int, stride: int) -> str:
    if stride == 1 and c_in == c_out:
        return x
    scope = f"{scope}.downsample"
    return _conv_bn(net, x, f"{scope}.0", f"{scope}.1", (c_in, c_out), 1, stride, conv_gain=1.0)


def _conv_bn(
    net: NetBuilder,
    x: str,
    conv: str,
    bn: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    gain: float = 1.0,
    conv_gain: float = AFTER_RELU,
) -> str:
    x = net.conv(x, conv, channels, kernel, stride, pad, gain=conv_gain)
    return net.batch_norm(x, bn, channels[1], gain)
