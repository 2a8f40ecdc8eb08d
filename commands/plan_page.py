"""A plan drawn as one page of HTML that needs nothing else: the network from top to bottom, and its numbers.

The page is well-formed XML too. Pointing at a box shows its details; the table leads to its box.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

import networkx as nx

from .plan_drawing import BOX_HEIGHT, BOX_WIDTH, Drawing, draw
from .plan_report import SUMMARY_TITLES, Item, Report, microseconds, summary

MARGIN = 24
COLOURS = ("#2f6fb3", "#2a8c6a", "#8a56ac", "#b5492f", "#a8841c", "#3c8ea8", "#b04a84", "#5d7a2e", "#6a5acd")
OTHER, CONVERSION, EDGE = "#7a828c", "#e0862c", "#aab2bd"
LETTERS = 29  # of a box's first line

STYLE = """
:root { font: 13px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; color: #1d2430; background: #f5f6f8; }
body { margin: 0; display: flex; align-items: flex-start; }
main { flex: 1 1 auto; overflow-x: auto; } svg { display: block; margin: 0 auto; }
aside { flex: 0 0 560px; width: 560px; position: sticky; top: 0; height: 100vh; overflow-y: auto;
  box-sizing: border-box; padding: 18px 20px; background: #fff; border-left: 1px solid #dfe3e8; }
h1 { font-size: 17px; margin: 0 0 2px; } h2 { font-size: 13px; margin: 18px 0 6px; }
p { margin: 2px 0; color: #5a6472; }
table { border-collapse: collapse; width: 100%; font-size: 11.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #5a6472; border-bottom: 1px solid #cfd5dc; padding: 3px 5px; }
td { padding: 2px 5px; border-bottom: 1px solid #eef0f3; overflow-wrap: anywhere; }
.r { text-align: right; white-space: nowrap; }
#modes td, th { white-space: nowrap; } tr.shown td { font-weight: 600; }
#list tr:hover td, tr.on td { background: #fff3d6; } #list { cursor: pointer; }
#details { min-height: 178px; background: #f5f6f8; border-radius: 6px; padding: 8px 10px; }
#details td { border: 0; padding: 1px 6px 1px 0; vertical-align: top; }
.legend span { display: inline-block; margin: 0 12px 4px 0; white-space: nowrap; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 5px; }
svg text { font-family: inherit; fill: #1d2430; } .first { font-size: 12px; font-weight: 600; }
.second { font-size: 10.5px; } svg .second { fill: #5a6472; }
.item rect.box { fill: #fff; stroke: #cbd2da; } .conversion rect.box { fill: #fff6ea; stroke: #e0862c; }
.input rect.box, .output rect.box { fill: #e9edf2; stroke: #8d97a3; }
.item:hover rect.box, .item.on rect.box { stroke: #1d2430; stroke-width: 2; }
.line { fill: none; stroke: #aab2bd; stroke-width: 1.6; } .line.on { stroke: #1d2430; stroke-width: 2.4; }
"""

SCRIPT = """
const items = document.querySelectorAll('.item'), rows = document.querySelectorAll('#list tr[data-id]');
function show(id) {
  for (const e of document.querySelectorAll('.on')) e.classList.remove('on');
  for (const key of ['id', 'from', 'to'])
    for (const e of document.querySelectorAll('[data-' + key + '="' + id + '"]')) e.classList.add('on');
  document.getElementById('details').replaceChildren(
    document.getElementById('d-' + id).content.cloneNode(true));
}
for (const e of items) e.addEventListener('mouseenter', function () { show(e.dataset.id); });
for (const e of rows) {
  e.addEventListener('mouseenter', function () { show(e.dataset.id); });
  e.addEventListener('click', function () {
    document.getElementById(e.dataset.id).scrollIntoView({block: 'center', behavior: 'smooth'}); });
}
"""


def page(report: Report) -> str:
    graph = nx.DiGraph()
    graph.add_nodes_from(item.id for item in report.items)
    graph.add_edges_from((source, item.id) for item in report.items for source in item.sources)
    colours = _colours(report)
    title = escape(f"{report.title}: {report.mode} plan")
    parts = [
        f'<html lang="en"><head><meta charset="utf-8"/><title>{title}</title><style>{STYLE}</style></head>',
        f"<body><main>{_svg(report, draw(graph), colours)}</main><aside><h1>{title}</h1>",
        f"{_totals(report)}{_modes(report)}{_legend(report, colours)}",
        '<h2>Details</h2><div id="details"><p>Point at a box or a row.</p></div>',
        f"{_list(report)}</aside>{''.join(map(_details, report.items))}",
        f"<script>{escape(SCRIPT, quote=False)}</script></body></html>",
    ]
    return "<!DOCTYPE html>\n" + "\n".join(parts) + "\n"


def _colours(report: Report) -> dict[str, str]:
    names = dict.fromkeys(item.algorithm for item in report.items if item.algorithm)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(names))}


def _svg(report: Report, drawing: Drawing, colours: dict[str, str]) -> str:
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}"'
    longest = max((_shown(item) or 0.0 for item in report.items), default=0.0) or 1.0
    lines = [
        f'<path class="line" data-from="{u}" data-to="{v}" d="{_curve(points)}"/>'
        for (u, v), points in drawing.lines.items()
    ]
    boxes = [_box(item, *drawing.places[item.id], colours, longest) for item in report.items]
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}{"".join(boxes)}</svg>'


def _curve(points: Sequence[tuple[float, float]]) -> str:
    parts = ["M{:.1f} {:.1f}".format(*points[0])]
    for (x, y), (u, v) in pairwise(points):
        middle = (y + v) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}")
    return "".join(parts)


def _box(item: Item, x: float, y: float, colours: dict[str, str], longest: float) -> str:
    colour = CONVERSION if item.kind == "conversion" else colours.get(item.algorithm, OTHER)
    seconds = _shown(item)
    second = " · ".join(part for part in (item.algorithm, _layouts(item)) if part)
    first = item.operators if item.kind in ("operator", "conversion") else item.name
    if item.kind in ("input", "output"):
        second = f"{item.kind}, {item.operators}"
    share = BOX_WIDTH * (seconds or 0.0) / longest
    known = item.measured is not None
    time = "" if seconds is None else f"{'' if known else '≈ '}{microseconds(seconds)} µs"
    marks = [
        f'<rect class="box" width="{BOX_WIDTH:.0f}" height="{BOX_HEIGHT:.0f}" rx="6"/>',
        f'<rect width="5" height="{BOX_HEIGHT - 12:.0f}" x="6" y="5" rx="2" fill="{colour}"/>',
        f'<rect width="{share:.1f}" height="3" y="{BOX_HEIGHT - 3:.0f}" rx="1.5" fill="{colour}"/>',
        f'<text class="first" x="18" y="18">{escape(_cut(first))}</text>',
        f'<text class="second" x="18" y="34">{escape(_cut(second, 34))}</text>',
        f'<text class="second" x="{BOX_WIDTH - 8:.0f}" y="34" text-anchor="end">{time}</text>',
    ]
    if item.local:
        w = BOX_WIDTH
        marks.append(f'<path d="M{w - 16:.0f} 0H{w - 6:.0f}a6 6 0 0 1 6 6V16Z" fill="#c0392b"/>')
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return (
        f'<g class="item {item.kind}" id="{item.id}" data-id="{item.id}" {place}>'
        f"<title>{escape(item.name)}</title>{''.join(marks)}</g>"
    )


def _shown(item: Item) -> float | None:
    """The time that a box shows."""
    if item.price is not None:
        return item.price.seconds
    return item.predicted


def _layouts(item: Item) -> str:
    return f"{item.reads} → {item.writes}" if item.reads != item.writes else item.reads


def _cut(text: str, letters: int = LETTERS) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _totals(report: Report) -> str:
    operators = sum(item.kind == "operator" for item in report.items)
    moves = sum(item.kind == "conversion" for item in report.items)
    measured = f", {report.total('measured') * 1e3:.3f} ms measured" if report.has_measured else ""
    return (
        f"<p>{operators} operators, {moves} conversions; {report.total('predicted') * 1e3:.3f} ms predicted"
        f"{measured}</p>"
    )


def _modes(report: Report) -> str:
    head = "".join(f'<th class="{"" if i == 0 else "r"}">{t}</th>' for i, t in enumerate(SUMMARY_TITLES))
    rows = [
        f'<tr class="{"shown" if row[0] == report.mode else ""}">'
        + "".join(f'<td class="{"" if i == 0 else "r"}">{cell}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in summary(report.modes)
    ]
    return f'<h2>Ways to plan</h2><table id="modes"><tr>{head}</tr>{"".join(rows)}</table>'


def _legend(report: Report, colours: dict[str, str]) -> str:
    entries = [*colours.items(), ("other operators", OTHER)]
    if any(item.kind == "conversion" for item in report.items):
        entries.append(("conversion of layout", CONVERSION))
    if any(item.local for item in report.items):
        entries.append(("local planning differs", "#c0392b"))
    spans = [f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in entries]
    note = "µs measured, ≈ predicted; the bar below a box is its time over the longest"
    return f'<h2>Legend</h2><div class="legend">{"".join(spans)}</div><p>{note}</p>'


def _details(item: Item) -> str:
    facts = {
        "name": item.name,
        "operators" if item.kind == "operator" else "type": item.operators,
        "algorithm": item.algorithm,
        "reads → writes": f"{item.reads} → {item.writes}" if item.reads else "",
        "predicted µs": microseconds(item.predicted),
        "measured µs": microseconds(item.measured),
        "cost in plan": f"{microseconds(item.price.seconds)} µs, {item.price.source}" if item.price else "",
        "record or model": item.price.name if item.price else "",
        "local planning": item.local,
        "alternatives": str(item.choices) if item.kind == "operator" else "",
    }
    rows = "".join(f"<tr><td>{name}</td><td>{escape(fact)}</td></tr>" for name, fact in facts.items() if fact)
    return f'<template id="d-{item.id}"><table>{rows}</table></template>'


def _list(report: Report) -> str:
    titles = ("node", "choice", "predicted µs", "measured µs")
    head = "".join(f'<th class="{"r" if i > 1 else ""}">{t}</th>' for i, t in enumerate(titles))
    rows = []
    for item in report.items:
        if item.kind not in ("operator", "conversion"):
            continue
        choice = f"{item.algorithm or item.operators} {_layouts(item)}"
        times = "".join(f'<td class="r">{microseconds(t)}</td>' for t in (item.predicted, item.measured))
        texts = f"<td>{escape(item.name)}</td><td>{escape(choice)}</td>"
        rows.append(f'<tr data-id="{item.id}">{texts}{times}</tr>')
    total = (
        f'<tr><th>sum</th><th></th><th class="r">{microseconds(report.total("predicted"))}</th>'
        f'<th class="r">{microseconds(report.total("measured")) if report.has_measured else ""}</th></tr>'
    )
    return f'<h2>Operators</h2><table id="list"><tr>{head}</tr>{"".join(rows)}{total}</table>'
