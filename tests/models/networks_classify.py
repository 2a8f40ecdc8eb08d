"""Blocks of networks that classify images, with channels, sizes and batches that fit no vector."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .net import Net


def resnet_blocks(n: Net) -> None:
    x, width = n.conv_bn_relu(n.input(3, 3, 31, 17), 3, 40, 7, stride=2, pad=3), 40
    x = n.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for channels, stride in ((40, 1), (72, 2), (72, 1)):
        y = n.conv_bn_relu(x, width, channels // 4, 1)
        y = n.conv_bn_relu(y, channels // 4, channels // 4, 3, stride=stride, pad=1)
        y = n.bn(n.conv(y, channels // 4, channels, 1, bias=False), channels)
        if stride != 1 or width != channels:
            x = n.bn(n.conv(x, width, channels, 1, bias=False, stride=stride), channels)
        x, width = n.relu(n.op("Add", y, x)), channels
    n.output(n.classifier(x, width, 11))


def preactivation_blocks(n: Net) -> None:
    """Batch norm and ReLU before padded convolutions: they cannot go into the weights."""
    x = n.conv(n.input(2, 3, 13, 11), 3, 32, pad=1)
    for _ in range(2):
        y = n.conv(n.relu(n.bn(x, 32)), 32, 32, pad=1)
        x = n.op("Add", n.conv(n.relu(n.bn(y, 32)), 32, 32, pad=1), x)
    n.output(n.classifier(n.bn(x, 32), 32, 5))


def resnext_groups(n: Net) -> None:
    x = n.conv_bn_relu(n.input(1, 3, 14, 14), 3, 64, pad=1)
    for group, channels in ((8, 64), (32, 64), (2, 64), (4, 64)):
        y = n.conv_bn_relu(n.conv_bn_relu(x, 64, channels, 1), channels, channels, group=group, pad=1)
        x = n.relu(n.op("Add", x, n.conv(y, channels, 64, 1)))
    n.output(n.conv(n.conv(x, 64, 51, 1), 51, 34, 3, group=17, stride=2))


def shufflenet_units(n: Net) -> None:
    def shuffle(x: str, batch: int, channels: int, h: int, w: int, groups: int) -> str:
        x = n.reshape(x, batch, groups, channels // groups, h, w)
        return n.reshape(n.transpose(x, 0, 2, 1, 3, 4), batch, channels, h, w)

    x = n.conv_bn_relu(n.input(2, 3, 18, 14), 3, 24, stride=2, pad=1)  # 9x7
    left, right = n.split(x, 12, 12)
    right = n.conv_bn_relu(right, 12, 12, 1)
    right = n.bn(n.conv(right, 12, 12, group=12, pad=1, bias=False), 12)
    x = shuffle(n.concat(left, n.conv_bn_relu(right, 12, 12, 1)), 2, 24, 9, 7, 2)
    y = n.relu(n.conv(x, 24, 36, 1, group=3))
    y = n.conv(shuffle(y, 2, 36, 9, 7, 3), 36, 36, group=36, stride=2, pad=1)
    pooled = n.op(
        "AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1
    )
    n.output(n.classifier(n.relu(n.concat(n.conv(y, 36, 36, 1, group=3), pooled)), 60, 7))


def squeeze_and_excitation(n: Net) -> None:
    x = n.conv_bn_relu(n.input(2, 3, 9, 10), 3, 40, pad=1)
    for channels, squeezed in ((40, 10), (100, 25)):
        y = n.conv_bn_relu(x, 40, channels, pad=1)
        gate = n.relu(n.conv(n.op("GlobalAveragePool", y), channels, squeezed, 1))
        y = n.op("Mul", y, n.op("Sigmoid", n.conv(gate, squeezed, channels, 1)))
        x = y if channels == 100 else n.relu(n.op("Add", x, y))
    mean = n.mean(x, 2, 3, keepdims=0)
    gate = n.op("Sigmoid", n.linear(n.relu(n.linear(mean, 100, 6)), 6, 100))
    n.output(n.op("Mul", n.op("Unsqueeze", gate, n.ints(2, 3)), x))


def mobilenet_v3(n: Net) -> None:
    x, width = n.op("HardSwish", n.conv(n.input(1, 3, 33, 29), 3, 16, stride=2, pad=1)), 16
    for expanded, channels, kernel, stride in ((16, 16, 3, 2), (72, 24, 5, 2), (88, 24, 5, 1)):
        y = n.op("HardSwish", n.bn(n.conv(x, width, expanded, 1, bias=False), expanded))
        y = n.conv(y, expanded, expanded, kernel, group=expanded, stride=stride, pad=kernel // 2)
        gate = n.relu(n.conv(n.op("GlobalAveragePool", y), expanded, 8, 1))
        gate = n.op("HardSigmoid", n.conv(gate, 8, expanded, 1), alpha=1 / 6, beta=0.5)
        y = n.conv(n.op("HardSwish", n.op("Mul", y, gate)), expanded, channels, 1)
        x, width = (n.op("Add", x, y) if stride == 1 and width == channels else y), channels
    six = n.op("Clip", n.op("Add", x, n.const(3.0)), n.const(0.0), n.const(6.0))
    n.output(n.classifier(n.op("Div", n.op("Mul", x, six), n.const(6.0)), width, 9))


def efficientnet_same_padding(n: Net) -> None:
    x = n.conv(n.input(1, 3, 30, 19), 3, 18, 3, strides=[2, 2], auto_pad="SAME_UPPER")
    x = n.op("Mul", x, n.op("Sigmoid", x))
    y = n.conv(x, 18, 18, 5, group=18, strides=[2, 2], auto_pad="SAME_UPPER")
    y = n.op("Mul", y, n.op("Sigmoid", y))
    y = n.conv(y, 18, 35, 3, strides=[2, 2], auto_pad="SAME_LOWER")
    n.output(n.op("MaxPool", y, kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER"), x)


def densenet_block(n: Net) -> None:
    x, width = n.conv(n.input(2, 3, 12, 11), 3, 17, pad=1), 17
    for _ in range(3):
        y = n.conv(n.relu(n.bn(x, width)), width, 24, 1)
        y = n.conv(n.relu(n.bn(y, 24)), 24, 12, pad=1)
        x, width = n.concat(x, y), width + 12
    x = n.conv(n.relu(n.bn(x, width)), width, 26, 1)
    n.output(n.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))


def inception_branches(n: Net) -> None:
    x = n.conv_bn_relu(n.input(1, 3, 15, 17), 3, 40, pad=1)
    a = n.conv_bn_relu(x, 40, 16, 1)
    b = n.relu(n.conv(n.conv_bn_relu(x, 40, 24, 1), 24, 32, 3, pad=1))
    c = n.relu(n.conv(n.conv_bn_relu(x, 40, 5, 1), 5, 17, 5, pad=2))
    d = n.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    e = n.conv(n.conv(x, 40, 16, (1, 7), pads=[0, 3, 0, 3]), 16, 16, (7, 1), pads=[3, 0, 3, 0])
    joined = n.concat(a, b, c, n.conv_bn_relu(d, 40, 8, 1), e)
    n.output(n.conv(joined, 89, 10, 3, stride=2), n.concat(a, b, e))


def depthwise_with_multipliers(n: Net) -> None:
    x = n.conv(n.input(2, 3, 11, 13), 3, 6, 3, group=3, pad=1)
    x = n.relu(n.conv(x, 6, 18, 3, group=6, pad=1))
    x = n.conv(x, 18, 36, 5, group=18, stride=2, pad=2, dilation=1)
    n.output(n.conv(n.relu(x), 36, 36, 3, group=36, dilation=2, pad=2))


def odd_strides_pads_and_kernels(n: Net) -> None:
    x = n.conv(n.input(2, 5, 31, 17), 5, 19, 5, strides=[3, 2], pads=[1, 2, 0, 3])
    x = n.conv(n.relu(x), 19, 32, 7, strides=[1, 2], pads=[3, 2, 4, 5])
    x = n.conv(n.relu(x), 32, 32, (2, 4), pads=[1, 3, 0, 2], dilations=[1, 2])
    x = n.op("Pad", x, n.ints(0, 0, 1, 0, 0, 0, 0, 2), mode="reflect")
    n.output(n.conv(n.op("Pad", x, n.ints(0, 0, 0, 1, 0, 0, 2, 0), n.const(0.5)), 32, 7, 3))


def convnext_block(n: Net) -> None:
    x = n.conv(n.input(1, 3, 16, 20), 3, 40, 4, stride=4)
    x = n.transpose(n.layer_norm(n.transpose(x, 0, 2, 3, 1), 40), 0, 3, 1, 2)
    y = n.transpose(n.conv(x, 40, 40, 7, group=40, pad=3), 0, 2, 3, 1)
    y = n.linear(n.gelu(n.linear(n.layer_norm(y, 40), 40, 160)), 160, 40)
    y = n.transpose(n.op("Mul", y, n.normal(40)), 0, 3, 1, 2)
    n.output(n.classifier(n.op("Add", x, y), 40, 5))


def normalisations_of_images(n: Net) -> None:
    x = n.conv(n.input(2, 3, 9, 7), 3, 24, pad=1)
    scale, shift = n.normal(24, shift=1.0), n.normal(24)
    a = n.relu(n.op("InstanceNormalization", x, scale, shift))
    b = n.op("GroupNormalization", n.conv(a, 24, 24, pad=1), scale, shift, num_groups=4)
    n.infos.append(helper.make_tensor_value_info(b, TensorProto.FLOAT, (2, 24, 9, 7)))  # onnx infers none
    c = n.op("InstanceNormalization", n.reshape(b, 2, 6, -1), n.const(np.ones(6)), n.const(np.zeros(6)))
    c = n.op(
        "Mul", n.reshape(c, 2, 24, 9, 7), n.normal(24, 1, 1)
    )  # group norm as torch exported it for years
    d = n.op("LRN", n.relu(n.op("Add", c, n.normal(24, 1, 1))), size=5, alpha=0.1, beta=0.75, bias=2.0)
    n.output(n.op("LpNormalization", n.conv(d, 24, 5, 1), axis=1, p=2))


def activations_by_channel(n: Net) -> None:
    x = n.conv(n.input(1, 3, 7, 9), 3, 17, pad=1)
    x = n.conv(n.op("PRelu", x, n.normal(17, 1, 1)), 17, 20, pad=1)
    kinds = ("Elu", "Selu", "Softplus", "Mish", "Celu", "Softsign", "ThresholdedRelu", "Gelu")
    n.output(*(n.op(kind, n.conv(x, 20, 3 + i, 1)) for i, kind in enumerate(kinds)))
    n.output(n.op("PRelu", x, n.const([0.25])), n.op("Clip", x, "", n.const(0.5)))


def broadcast_residuals(n: Net) -> None:
    x = n.conv(n.input(2, 3, 6, 5), 3, 33, pad=1)
    for shape in ((1, 33, 1, 1), (33, 1, 1), (6, 5), (1, 5), (2, 1, 1, 1), (2, 33, 1, 5), (1,), ()):
        x = n.op("Add", x, n.normal(*shape))
    x = n.conv(x, 33, 20, pad=1)
    for shape in ((2, 20, 1, 1), (1, 1, 6, 5), (2, 1, 6, 1)):
        x = n.op("Mul", n.input(*shape), x)
    outer = n.op("Add", n.op("GlobalMaxPool", x), n.mean(x, 1))  # (2, 20, 1, 1) + (2, 1, 6, 5)
    n.output(n.op("Sub", outer, n.op("Expand", n.normal(1, 20, 1, 5), n.ints(2, 20, 6, 5))))


def images_of_one_and_six_pixels(n: Net) -> None:
    dot = n.conv_bn_relu(n.input(3, 3, 1, 1), 3, 40, 3, pad=1)
    dot = n.conv_bn_relu(n.conv(dot, 40, 40, 5, pad=2, group=40), 40, 17, pad=1)
    small = n.conv_bn_relu(n.input(2, 40, 2, 3), 40, 48, pad=1)
    small = n.conv_bn_relu(small, 48, 100, 3, pad=1)
    pooled = n.op("MaxPool", small, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1)
    n.output(dot, n.conv(small, 100, 3, (2, 3)), n.op("AveragePool", pooled, kernel_shape=[1, 2]))


def flattened_into_dense_layers(n: Net) -> None:
    x = n.conv_bn_relu(n.input(3, 3, 12, 10), 3, 32, stride=2, pad=1)
    x = n.op("MaxPool", n.conv_bn_relu(x, 32, 48, pad=1), kernel_shape=[2, 2], strides=[2, 2])  # 3x2
    flat = n.op("Flatten", x, axis=1)
    hidden = n.relu(n.op("Gemm", flat, n.normal(50, 288, scale=0.06), n.normal(50), transB=1))
    odd = n.op("Flatten", n.conv(x, 48, 20, 1), axis=1)
    n.output(
        n.op("LogSoftmax", n.linear(hidden, 50, 10), axis=1), n.linear(odd, 120, 7), n.linear(flat, 288, 3)
    )


NETWORKS = (
    resnet_blocks,
    preactivation_blocks,
    resnext_groups,
    shufflenet_units,
    squeeze_and_excitation,
    mobilenet_v3,
    efficientnet_same_padding,
    densenet_block,
    inception_branches,
    depthwise_with_multipliers,
    odd_strides_pads_and_kernels,
    convnext_block,
    normalisations_of_images,
    activations_by_channel,
    broadcast_residuals,
    images_of_one_and_six_pixels,
    flattened_into_dense_layers,
)
