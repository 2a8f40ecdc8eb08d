"""Networks from images to images, boxes or volumes, along signals, and with unusual wiring."""

from __future__ import annotations

import numpy as np

from .net import Net


def unet_with_transposed_convolutions(n: Net) -> None:
    x = n.input(2, 3, 20, 28)
    skips, width = [], 3
    for channels in (17, 24):
        x = n.conv_bn_relu(n.conv_bn_relu(x, width, channels, pad=1), channels, channels, pad=1)
        skips.append((x, channels))
        x, width = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), channels
    x, width = n.conv_bn_relu(x, width, 40, pad=1), 40
    for skip, channels in reversed(skips):
        up = n.conv_transpose(x, width, channels, (2, 2), strides=[2, 2])
        x = n.conv_bn_relu(n.concat(skip, up), 2 * channels, channels, pad=1)
        width = channels
    n.output(n.op("Sigmoid", n.conv(x, width, 2, 1)))


def unet_with_resizes_of_odd_sizes(n: Net) -> None:
    x = n.input(1, 3, 31, 17)
    a = n.conv_bn_relu(x, 3, 20, pad=1)
    b = n.conv_bn_relu(a, 20, 33, pad=1, stride=2)  # 16x9
    c = n.conv_bn_relu(b, 33, 48, pad=1, stride=2)  # 8x5
    up = n.op(
        "Resize",
        c,
        "",
        "",
        n.ints(1, 48, 16, 9),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
    b = n.conv_bn_relu(n.concat(up, b), 81, 33, pad=1)
    up = n.op(
        "Resize",
        *(b, "", "", n.ints(1, 33, 31, 17)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    n.output(n.conv(n.concat(up, a), 53, 5, 1))


def aspp_dilations(n: Net) -> None:
    x = n.conv_bn_relu(n.input(1, 3, 16, 18), 3, 32, pad=1)
    parts = [n.conv_bn_relu(x, 32, 20, 1)]
    parts += [n.conv_bn_relu(x, 32, 20, dilation=d, pad=d) for d in (2, 4, 12)]
    pooled = n.conv_bn_relu(n.op("GlobalAveragePool", x), 32, 20, 1)
    parts.append(n.op("Resize", pooled, "", "", n.ints(1, 20, 16, 18), mode="linear"))
    x = n.conv(n.concat(*parts), 100, 3, 1)
    n.output(
        n.op("Resize", x, "", n.const([1, 1, 2, 2])), n.op("ArgMax", n.slice(x, 1, 0, 1), axis=1, keepdims=0)
    )


def pyramid_of_features(n: Net) -> None:
    c2 = n.conv_bn_relu(n.input(1, 3, 32, 24), 3, 16, stride=2, pad=1)
    c3 = n.conv_bn_relu(c2, 16, 24, stride=2, pad=1)
    c4 = n.conv_bn_relu(c3, 24, 40, stride=2, pad=1)
    p4 = n.conv(c4, 40, 32, 1)
    p3 = n.op("Add", n.conv(c3, 24, 32, 1), n.op("Resize", p4, "", n.const([1, 1, 2, 2]), mode="nearest"))
    p2 = n.op("Add", n.conv(c2, 16, 32, 1), n.op("Resize", p3, "", n.const([1, 1, 2, 2]), mode="nearest"))
    head = n.normal(32, 32, 3, 3, scale=0.06)  # one head for all sizes
    n.output(*(n.op("Conv", p, head, pads=[1] * 4) for p in (p2, p3, p4)), p4)


def detection_head(n: Net) -> None:
    x = n.op("LeakyRelu", n.bn(n.conv(n.input(2, 3, 20, 20), 3, 32, stride=2, pad=1), 32), alpha=0.1)
    pools = [n.op("MaxPool", x, kernel_shape=[k, k], pads=[k // 2] * 4) for k in (5, 9, 13)]
    x = n.conv(n.conv(n.concat(x, *pools), 128, 32, 1), 32, 21, 1)  # 3 anchors, 2 classes
    x = n.op("Sigmoid", n.transpose(n.reshape(x, 2, 3, 7, 10, 10), 0, 1, 3, 4, 2))
    xy, wh, rest = n.split(x, 2, 2, 3, axis=4)
    grid = np.stack(np.meshgrid(np.arange(10), np.arange(10)), -1).reshape(1, 1, 10, 10, 2)
    xy = n.op(
        "Mul",
        n.op("Add", n.op("Sub", n.op("Mul", xy, n.const(2.0)), n.const(0.5)), n.const(grid)),
        n.const(8.0),
    )
    wh = n.op("Mul", n.op("Pow", n.op("Mul", wh, n.const(2.0)), n.const(2.0)), n.normal(1, 3, 1, 1, 2))
    n.output(n.reshape(n.concat(xy, wh, rest, axis=4), 2, -1, 7))


def pixel_shuffle(n: Net) -> None:
    x = n.relu(n.conv(n.input(1, 1, 9, 7), 1, 33, 5, pad=2))
    up = n.op("DepthToSpace", n.conv(x, 33, 12, pad=1), blocksize=2, mode="CRD")
    wide = n.op("DepthToSpace", n.conv(x, 33, 18, pad=1), blocksize=3)
    n.output(up, n.op("SpaceToDepth", n.op("Tanh", wide), blocksize=3))


def decoder_of_transposed_convolutions(n: Net) -> None:
    x = n.reshape(n.linear(n.input(2, 10), 10, 48 * 2 * 3), 2, 48, 2, 3)
    x = n.relu(
        n.bn(n.conv_transpose(x, 48, 20, (3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]), 20)
    )
    x = n.relu(n.bn(n.conv_transpose(x, 20, 12, (4, 4), strides=[2, 2], pads=[1] * 4, group=4), 12))
    n.output(
        n.op("Tanh", n.conv_transpose(x, 12, 3, (5, 3), strides=[3, 1], pads=[2, 1, 0, 1], dilations=[1, 2]))
    )


def values_used_in_many_ways(n: Net) -> None:
    """Outputs that are read, a value under several names, an input as output, blocked and plain readers."""
    image = n.input(2, 3, 8, 9)
    x = n.conv_bn_relu(image, 3, 32, pad=1)
    y = n.conv(x, 32, 32, pad=1)
    n.output(x, y, n.op("Identity", y), n.op("Identity", y), n.op("Identity", image))
    n.output(n.transpose(y, 0, 2, 3, 1), n.reshape(y, 2, -1), n.op("Relu", n.op("Add", x, y)))
    n.output(n.op("Identity", n.const([1.0, 2.0])), n.slice(y, 1, 3, 20), n.concat(y, x, axis=0))


def weights_from_elsewhere(n: Net) -> None:
    """Convolutions whose weights are an input, computed, or shared by layers of different strides."""
    x = n.conv_bn_relu(n.input(2, 3, 10, 9), 3, 20, pad=1)
    kernels = n.op("Mul", n.input(24, 20, 3, 3), n.const(0.08))
    a = n.op("Conv", x, kernels, n.input(24), pads=[1] * 4)
    shared = n.normal(24, 24, 3, 3, scale=0.07)
    b, c = (n.op("Conv", a, shared, strides=[s, s], pads=[1] * 4) for s in (1, 2))
    turned = n.op("Conv", a, n.transpose(shared, 1, 0, 2, 3), pads=[1] * 4)
    dense = n.op("MatMul", n.mean(b, 2, 3, keepdims=0), n.op("Tanh", n.input(24, 5)))
    n.output(n.op("Add", b, turned), c, dense)


def empty_batch(n: Net) -> None:
    x = n.conv_bn_relu(n.input(0, 3, 9, 9), 3, 32, pad=1)
    x = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    n.output(n.op("Softmax", n.classifier(n.conv(x, 32, 40, pad=1), 40, 6), axis=1), x)


def wavenet(n: Net) -> None:
    x, skips = n.conv(n.input(2, 1, 53), 1, 20, (1,)), []
    for dilation in (1, 2, 4, 8):
        padded = n.op("Pad", x, n.ints(0, 0, dilation, 0, 0, 0))
        both = n.conv(padded, 20, 40, (2,), dilations=[dilation])
        a, b = n.split(both, 20, 20)
        y = n.op("Mul", n.op("Tanh", a), n.op("Sigmoid", b))
        skips.append(n.conv(y, 20, 24, (1,)))
        x = n.op("Add", n.conv(y, 20, 20, (1,)), x)
    n.output(n.conv(n.relu(n.op("Sum", *skips)), 24, 17, (1,)))


def speech_convolutions(n: Net) -> None:
    x = n.relu(n.bn(n.conv(n.input(2, 40, 37), 40, 65, (5,), strides=[2], pads=[2, 1]), 65))
    x = n.op("MaxPool", n.conv(x, 65, 65, (9,), group=65, pads=[4, 4]), kernel_shape=[3], strides=[3])
    x = n.conv_transpose(x, 65, 12, (4,), strides=[2], pads=[1, 1])
    n.output(n.op("AveragePool", x, kernel_shape=[3], strides=[2], ceil_mode=1))


def volumes(n: Net) -> None:
    x = n.relu(n.bn(n.conv(n.input(1, 2, 7, 9, 8), 2, 18, (3, 3, 3), pad=1), 18))
    y = n.op("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    y = n.conv(y, 18, 32, (3, 3, 3), strides=[1, 2, 1], pads=[1, 1, 1, 1, 1, 1])
    y = n.relu(n.conv(y, 32, 32, (1, 3, 3), group=32, pads=[0, 1, 1, 0, 1, 1]))
    up = n.conv_transpose(y, 32, 9, (2, 2, 2), strides=[2, 2, 2])
    n.output(up, n.op("GlobalAveragePool", n.conv(y, 32, 5, (1, 1, 1))))


NETWORKS = (
    unet_with_transposed_convolutions,
    unet_with_resizes_of_odd_sizes,
    aspp_dilations,
    pyramid_of_features,
    detection_head,
    pixel_shuffle,
    decoder_of_transposed_convolutions,
    values_used_in_many_ways,
    weights_from_elsewhere,
    empty_batch,
    wavenet,
    speech_convolutions,
    volumes,
)
