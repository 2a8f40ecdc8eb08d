"""Networks on AArch64 against onnxruntime. `burnish verify NAME --target cortex-a72` takes any of the zoo."""

from __future__ import annotations

import pytest
from burnish import pipeline
from burnish.commands.compare import compare
from burnish.commands.verify import run_onnxruntime
from burnish.models import zoo

from ..compiled.quantised import check as check_quantised
from ..compiled.test_random_graphs import compare as compare_random

NETWORKS = [  # name, pixels (None: its own), target
    ("dqn", None, "cortex-a72"),
    ("mobilenet_v1", 64, "cortex-a53"),
    ("resnet18", 40, "cortex-a76"),
]


@pytest.mark.parametrize(("name", "pixels", "target"), NETWORKS)
def test_a_network_agrees_with_onnxruntime(aarch64, name, pixels, target):
    model = zoo.build(name, image=pixels)
    feeds = zoo.random_inputs(model, 0)
    module = pipeline.compile(model, target=target, threads=2)
    found = module.run(feeds)
    for output, array in run_onnxruntime(model, feeds).items():
        one = compare(output, target, found[output], array)
        assert one.ok, one.text()


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_random_model(aarch64, seed):
    compare_random(seed, target=("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1")[seed % 4])


@pytest.mark.parametrize("target", ["cortex-a72", "cortex-a76"])
def test_a_quantised_network(aarch64, target):
    """Without dot products and with them."""
    check_quantised(target, "global")
