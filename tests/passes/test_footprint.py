"""What measurements evict is what the other kernels of a network leave in caches."""

from dataclasses import replace

import pytest
from burnish.compiler.target import get_target
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.footprint import MOST, evicting_bytes
from burnish.models import zoo
from burnish.pipeline import optimise

TARGET = replace(get_target("x86-64-v3"), l1=32 << 10, l2=512 << 10, l3=32 << 20)


def fused(name):
    return optimise(import_onnx(zoo.build(name)), TARGET, 1, stop_after="fuse")


@pytest.mark.parametrize(
    ("name", "evict"),
    [
        ("c2", 0),
        ("dqn", 512 << 10),
        ("mobilenet_v2", 16 << 20),
        ("mobilenet_v1", 32 << 20),
        ("resnet18", 64 << 20),
    ],
)
def test_what_others_touch(name, evict):
    assert evicting_bytes(fused(name), TARGET) == evict


def test_no_more_than_the_caches_forget():
    graph = fused("resnet18")
    assert evicting_bytes(graph, replace(TARGET, l3=0)) == 2 * TARGET.l2
    assert evicting_bytes(graph, replace(TARGET, l3=1 << 30)) == 64 << 20 < MOST
    assert evicting_bytes(graph, get_target("cuda-sm90")) == 64 << 20
    assert evicting_bytes(graph, get_target("opencl")) == 2 * get_target("opencl").l2
