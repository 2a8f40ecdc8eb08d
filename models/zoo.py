"""The zoo: real networks by name, built on the spot with seeded random weights (`digits` is trained)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import onnx

from ..errors import InputError
from .bert import bert_base
from .convolutions import WORKLOADS, convolution
from .digits import digits
from .dqn import dqn
from .light import light
from .lstm_lm import lstm_lm
from .mobilenet import mobilenet_v1, mobilenet_v2
from .randomize import random_inputs, random_weights
from .resnet import resnet
from .vgg import vgg19

__all__ = ["build", "names", "random_inputs", "random_weights"]


@dataclass(frozen=True)
class _Network:
    make: Callable[..., onnx.ModelProto]
    image: int = 0  # default height and width; 0: the network takes no image size
    smallest: int = 1  # the least image whose feature maps are not empty
    seeded: bool = True


_NETWORKS = {
    "digits": _Network(digits, seeded=False),
    "resnet18": _Network(partial(resnet, 18), 224),
    "resnet34": _Network(partial(resnet, 34), 224),
    "resnet50": _Network(partial(resnet, 50), 224),
    "vgg19": _Network(vgg19, 224, smallest=32),
    "mobilenet_v1": _Network(mobilenet_v1, 224),
    "mobilenet_v2": _Network(mobilenet_v2, 224),
    "lstm_lm": _Network(partial(lstm_lm, 35)),
    "lstm_lm_step": _Network(partial(lstm_lm, 1)),
    "dqn": _Network(dqn, 84, smallest=36),
    "bert_base": _Network(bert_base),
    **{name: _Network(partial(light, name)) for name in ("inception_v1", "inception_v2", "densenet121")},
    **{name: _Network(partial(convolution, name), shape[0]) for name, shape in WORKLOADS.items()},
}


def names() -> list[str]:
    """Every name that `build` knows: networks first, then the single convolutions c1 to c12."""
    return list(_NETWORKS)


def build(name: str, *, seed: int = 0, batch: int = 1, image: int | None = None) -> onnx.ModelProto:
    """The named network with static shapes; the same arguments give the same weights.

    `image` is height and width of the input in pixels, for networks that take images of any size. `digits`
    has trained weights, whatever the seed. Raises InputError for an unknown name or an impossible size.
    """
    network = _NETWORKS.get(name)
    if network is None:
        raise InputError(f"no network named {name!r} in the zoo: choose one of {', '.join(names())}")
    if batch < 1 or seed < 0:
        raise InputError(f"{name}: batch {batch} and seed {seed}: batch must be at least 1, seed at least 0")
    arguments = {"batch": batch}
    if network.seeded:
        arguments["seed"] = seed
    if image is not None and not network.image:
        raise InputError(f"{name} has a fixed input size: leave the image size {image} out")
    if network.image:
        arguments["image"] = network.image if image is None else image
        if arguments["image"] < network.smallest:
            raise InputError(f"{name}: image size {image}: at least {network.smallest} pixels are needed")
    return network.make(**arguments)
