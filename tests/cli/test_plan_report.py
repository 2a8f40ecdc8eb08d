"""`burnish plan`: what it prints, and the page that it draws."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.commands.plan import cells
from burnish.commands.plan_drawing import BOX_HEIGHT, BOX_WIDTH, draw
from burnish.commands.plan_page import page
from burnish.commands.plan_report import Report, microseconds, report, summary
from burnish.compiler.target import TARGETS
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.plan_layout import MODES, PlanOptions
from burnish.graph_passes.predict import MODEL, PredictedCost
from burnish.models import zoo

TARGET = TARGETS["x86-64-v3"]
SVG = "{http://www.w3.org/2000/svg}"


def made(name: str, mode: str = "global") -> tuple[Report, int]:
    """The report, and how many nodes the network has."""
    graph = pipeline.optimise(import_onnx(zoo.build(name)), TARGET, 1, stop_after="fuse")
    cost = PredictedCost(TARGET, 1)
    return report(name, graph, cost, cost, PlanOptions(mode)), len(graph.nodes)


@pytest.mark.parametrize(
    ("name", "mode"), [("resnet18", "global"), ("inception_v1", "local"), ("dqn", "fixed")]
)
def test_report_and_page_agree(name, mode):
    found, nodes = made(name, mode)
    operators = [item for item in found.items if item.kind == "operator"]
    moves = [item for item in found.items if item.kind == "conversion"]
    assert len(operators) == nodes
    assert len(moves) >= {m.name: m for m in found.modes}[mode].conversions
    root = ElementTree.fromstring(page(found).partition("\n")[2])
    boxes = root.findall(f".//{SVG}g")
    assert [box.get("id") for box in boxes] == [item.id for item in found.items]
    assert len({box.get("id") for box in boxes}) == len(boxes)
    lines = {
        (p.get("data-from"), p.get("data-to")) for p in root.findall(f".//{SVG}path") if p.get("data-to")
    }
    assert lines == {(source, item.id) for item in found.items for source in item.sources}
    rows = [[cell.text or "" for cell in row] for row in root.findall(".//table[@id='list']/tr[@data-id]")]
    assert [(row[0], *row[2:]) for row in rows] == [
        (item.name, *cells(item)[6:8]) for item in found.items if item.kind in ("operator", "conversion")
    ]
    modes = [tuple(cell.text or "" for cell in row) for row in root.findall(".//table[@id='modes']/tr")[1:]]
    assert modes == summary(found.modes)
    assert not re.search(r"(src|href)=", page(found))


def test_costs_of_the_items_are_the_plan():
    for mode in MODES:
        found, _ = made("mobilenet_v2", mode)
        planned = {m.name: m.cost for m in found.modes}[mode]
        assert found.total("predicted") == pytest.approx(planned)
        assert not found.has_measured
        assert {item.price.name for item in found.items if item.price} == {MODEL}


def test_every_read_has_a_source_that_comes_before():
    found, _ = made("inception_v2", "local")
    known: set[str] = set()
    for item in found.items:
        assert set(item.sources) <= known
        assert item.sources or item.kind == "input"
        known.add(item.id)
    assert any(item.kind == "conversion" for item in found.items)


def test_boxes_do_not_overlap_and_lines_join_them():
    graph = nx.DiGraph([(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4), (4, 6), (0, 6), (5, 6)])
    drawing = draw(graph)
    for a, b in combinations(graph, 2):
        (x, y), (u, v) = drawing.places[a], drawing.places[b]
        assert abs(x - u) >= BOX_WIDTH or abs(y - v) >= BOX_HEIGHT
    for (a, b), points in drawing.lines.items():
        for at, place in ((points[0], drawing.places[a]), (points[-1], drawing.places[b])):
            assert at[0] == pytest.approx(place[0] + BOX_WIDTH / 2)
        assert all(p[1] <= q[1] for p, q in pairwise(points))
    assert max(x for x, _ in drawing.places.values()) + BOX_WIDTH <= drawing.width + 1e-6


def test_a_page_of_nothing(burnish, tmp_path):
    """All of the model is a constant."""
    node = onnx.helper.make_node("Relu", ["w"], ["y"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    w = onnx.numpy_helper.from_array(np.array([1, -1], np.float32), "w")
    model, path = (
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [y], [w])),
        tmp_path / "p.html",
    )
    onnx.save(model, tmp_path / "constant.onnx")
    burnish("plan", tmp_path / "constant.onnx", "--html", path)
    assert ElementTree.fromstring(path.read_text(encoding="utf-8").partition("\n")[2]).tag == "html"


def test_command_names_the_model_and_writes_the_page(burnish, tmp_path):
    path = tmp_path / "plan.html"
    (tmp_path / "none.jsonl").touch()
    options = ("--target", "x86-64-v3", "--threads", 1, "--records", tmp_path / "none.jsonl")
    said = burnish("plan", "dqn", *options, "--html", path, "--plan", "local").stdout
    assert f"predicted {MODEL}" in said and "local plan" in said and f"wrote {path}" in said
    found, _ = made("dqn", "local")
    for item in found.items:
        if isinstance(item.predicted, float):
            assert microseconds(item.predicted) in said
    assert ElementTree.fromstring(path.read_text(encoding="utf-8").partition("\n")[2]).tag == "html"
