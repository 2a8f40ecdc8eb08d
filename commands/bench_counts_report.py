"""What `burnish bench` prints and writes where it counts instructions: a table, Markdown, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from .bench_counts import KINDS, CountGroup, CountResult, CountRow
from .bench_report import INCOMPLETE, TIE
from .report import Report, Section

FORMAT = "burnish-counts-1"
_NUMBERS = ("instructions", "best peer's / own", "fmla", "vector loads", "vector stores", "whole process")
_COLUMNS = ("", *_NUMBERS, "algorithm", "")


def report(result: CountResult) -> Report:
    """Tables and summary."""
    sections = [
        Section(title(result, g), [(cells(g, row), "bold" if row.subject else None) for row in g.rows])
        for g in result.groups
    ]
    return Report(
        header=header(result), columns=_COLUMNS, numbers=_NUMBERS, sections=sections, summary=summary(result)
    )


def to_json(result: CountResult) -> str:
    """The whole result; the format is versioned."""
    document = {"format": FORMAT, "unit": "instructions of one run", **dataclasses.asdict(result)}
    document["groups"] = [
        {"network": g.network, "checked": g.checked, "rows": [_row_json(g, row) for row in g.rows]}
        for g in result.groups
    ]
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def header(result: CountResult) -> list[str]:
    versions = {row.contestant: row.version for g in result.groups for row in g.rows if row.version}
    return [
        f"{result.date}, {result.emulator}, seed {result.seed}",
        *([] if result.complete else [INCOMPLETE]),
        f"EMULATED {result.target}, 1 thread: instructions, no times; of one run, the mean of at least "
        f"{result.runs} after a first one, without a process's start",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]


def title(result: CountResult, group: CountGroup) -> str:
    unchecked = "" if group.checked else ", outputs not checked (onnxruntime cannot run it here)"
    return f"{group.network}, instructions on an emulated {result.target}{unchecked}"


def cells(group: CountGroup, row: CountRow) -> tuple[str, ...]:
    """One cell per column."""
    if row.instructions is None:
        return (row.contestant, *[""] * (len(_COLUMNS) - 2), row.reason or "not counted")
    ratio = group.ratio(row)
    note = "best peer" if row is group.best_peer else verdict(group, row) if row.subject else ""
    return (
        row.contestant,
        _millions(row.instructions),
        "" if ratio is None else f"{ratio:.2f}",
        *(_millions(row.counts[kind]) for kind in KINDS if kind in ("fmla", "vector_loads", "vector_stores")),
        _millions(row.process or 0),
        row.algorithm,
        note,
    )


def summary(result: CountResult) -> list[str]:
    """Each subject's networks by how it compares with the best peer."""
    lines = []
    rows = [(group, row) for group in result.groups for row in group.rows if row.subject]
    for subject in dict.fromkeys(row.contestant for _, row in rows):
        for word, sentence in _SENTENCES.items():
            found = [g.network for g, row in rows if row.contestant == subject and verdict(g, row) == word]
            if found:
                lines.append(f"{subject} {sentence}: {', '.join(found)}")
    return lines


_SENTENCES = {
    "fewer": "executes fewer instructions than every peer",
    "tie": f"is within {TIE:.0%} of the fewest instructions of a peer",
    "more": "executes more instructions than the best peer",
    "alone": "has no peer to compare with",
    "failed": "failed",
}


def verdict(group: CountGroup, row: CountRow) -> str:
    """fewer, tie, more, alone (no peer ran) or failed."""
    ratio = group.ratio(row)
    if row.instructions is None:
        return "failed"
    if ratio is None:
        return "alone"
    if abs(ratio - 1) < TIE:
        return "tie"
    return "fewer" if ratio > 1 else "more"


def _row_json(group: CountGroup, row: CountRow) -> dict[str, Any]:
    document = dataclasses.asdict(row)
    document["error"] = row.error if row.error is not None and math.isfinite(row.error) else None
    document["verdict"] = verdict(group, row) if row.subject else None
    return document


def _millions(number: float) -> str:
    return f"{number / 1e6:.3g} M" if number < 1e9 else f"{number / 1e6:.0f} M"
