"""C1–C12: the twelve distinct convolutions of ResNet-18, one node each.

Source: Chen et al., Learning to Optimize Tensor Programs (2018), table of single-operator workloads.
"""

from __future__ import annotations

import onnx

from .builder import NetBuilder

# name: (height = width, input channels, output channels, kernel, stride); padding is kernel // 2
WORKLOADS = {
    "c1": (224, 3, 64, 7, 2),
    "c2": (56, 64, 64, 3, 1),
    "c3": (56, 64, 64, 1, 1),
    "c4": (56, 64, 128, 3, 2),
    "c5": (56, 64, 128, 1, 2),
    "c6": (28, 128, 128, 3, 1),
    "c7": (28, 128, 256, 3, 2),
    "c8": (28, 128, 256, 1, 2),
    "c9": (14, 256, 256, 3, 1),
    "c10": (14, 256, 512, 3, 2),
    "c11": (14, 256, 512, 1, 2),
    "c12": (7, 512, 512, 3, 1),
}


def convolution(name: str, *, seed: int, batch: int, image: int) -> onnx.ModelProto:
    """x (batch, in, image, image) → y (batch, out, h, w) with h = w = ceil(image / stride)."""
    _, c_in, c_out, kernel, stride = WORKLOADS[name]
    net = NetBuilder(name, seed)
    x = net.input("x", (batch, c_in, image, image))
    side = -(-image // stride)
    weight = net.normal("weight", (c_out, c_in, kernel, kernel), (c_in * kernel * kernel) ** -0.5)
    net.node(
        "Conv",
        [x, weight, net.normal("bias", (c_out,), 0.1)],
        outputs=[net.output("y", (batch, c_out, side, side))],
        kernel_shape=[kernel] * 2,
        pads=[kernel // 2] * 4,
        strides=[stride] * 2,
    )
    return net.model()
