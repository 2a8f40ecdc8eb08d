"""Graphs: verifier, pruning, interpretation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph, Node, interpret, prune, verify
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Identity, Transpose
from burnish.errors import InternalError

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def network() -> Graph:
    """y = wᵀ x, with a node that nothing needs."""
    types = {
        "x": TensorType(F32, (2, 4)),
        "w": TensorType(F32, (2, 3)),
        "wt": TensorType(F32, (3, 2)),
        "y": TensorType(F32, (3, 4)),
        "dead/value": TensorType(F32, (2, 4)),
    }
    nodes = (
        Node(Transpose((1, 0)), ("w",), ("wt",), "turn"),
        Node(Identity(), ("x",), ("dead/value",), "dead"),
        Node(MatMul(), ("wt", "x"), ("y",), "product"),
    )
    return Graph("net", ("x",), ("y",), nodes, types, {"w": W})


def test_interpret():
    graph = network()
    verify(graph)
    x = np.ones((2, 4), np.float32)
    out = interpret(graph, {"x": x}, watch=["wt"])
    np.testing.assert_allclose(out["y"], W.T @ x)
    np.testing.assert_array_equal(out["wt"], W.T)
    assert set(out) == {"y", "wt"}


def test_constants_are_held_in_their_layout():
    graph = network()
    blocked = TensorType.parse("f32[2,3]:aB2b")
    assert blocked.layout
    packed = blocked.layout.pack(W)
    graph = replace(graph, types={**graph.types, "w": blocked}, constants={"w": packed})
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], W.T @ x)


def test_prune_drops_what_no_output_needs():
    pruned = prune(network())
    assert [node.name for node in pruned.nodes] == ["turn", "product"]
    assert set(pruned.types) == {"x", "w", "wt", "y"}
    without_weights = pruned.with_nodes(
        [Node(MatMul(), ("c", "x"), ("y",), "product")], constants={"c": W.T.copy()}
    )
    verify(without_weights)
    assert set(without_weights.constants) == {"c"} and str(without_weights.type("c")) == "f32[3,2]"


def test_producers_and_consumers():
    graph = network()
    assert graph.producers()["wt"].name == "turn"
    assert [n.name for n in graph.consumers()["x"]] == ["dead", "product"]
    assert "y" not in graph.consumers()


def changed(**fields) -> Graph:
    return replace(network(), **fields)


NODES, TYPES = network().nodes, dict(network().types)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (changed(nodes=NODES[::-1]), "'product' reads 'wt', which is not defined before"),
        (changed(nodes=(*NODES, NODES[0])), "'wt' is defined twice, again by node 'turn'"),
        (changed(outputs=("z",)), "output 'z' is not defined"),
        (changed(inputs=("x", "w")), "both input and constant"),
        (changed(constants={"w": W.T}), r"constant w: array float32\[3, 2\] but type"),
        (changed(constants={"w": W.astype(np.float64)}), "constant w: array float64"),
        (changed(types={**TYPES, "y": TensorType(F32, (4, 3))}), "'y' is held as"),
    ],
)
def test_verifier_refuses(graph, message):
    with pytest.raises(InternalError, match=message):
        verify(graph)
