"""VGG-19 (Simonyan and Zisserman 2014), without batch norm."""

from __future__ import annotations

import onnx

from .builder import AFTER_RELU, NetBuilder

_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # (channels, convolutions)


def vgg19(*, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """x (batch, 3, image, image) → logits (batch, 1000); the first dense layer fits the image's size."""
    net = NetBuilder("vgg19", seed)
    x = net.input("x", (batch, 3, image, image))
    c_in, index = 3, 0
    for c_out, convolutions in _STAGES:
        for _ in range(convolutions):
            gain = 1.0 if index == 0 else AFTER_RELU
            x = net.conv(x, f"features.{index}", (c_in, c_out), 3, pad=1, bias=True, gain=gain)
            x = net.node("Relu", [x], f"features.{index + 1}")
            c_in, index = c_out, index + 2
        x = net.node("MaxPool", [x], f"features.{index}", kernel_shape=[2, 2], strides=[2, 2])
        index += 1
    x = net.node("Flatten", [x], axis=1)
    side = image // 32
    x = net.linear(x, "classifier.0", (512 * side * side, 4096))
    x = net.node("Relu", [x], "classifier.1")
    x = net.linear(x, "classifier.3", (4096, 4096), gain=AFTER_RELU)
    x = net.node("Relu", [x], "classifier.4")
    net.linear(x, "classifier.6", (4096, 1000), outputs=[net.output("logits", (batch, 1000))])
    return net.model()
