"""What `burnish bench` prints and writes: a table, Markdown, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

from .bench import BenchResult, Group, Row, place
from .intervals import Interval
from .report import Report, Section

FORMAT = "burnish-bench-1"
# Gaps below this are ties: two runs of one binary differ by as much.
TIE = 0.03

SURE = 0.9
"""Probability of an interval from which on it tells who is faster: that of five rounds is 0.94."""
INCOMPLETE = "INCOMPLETE: ended before everything was compared"
BUSY = 0.3  # load average per core from which on the report warns
_NUMBERS = ("ms (interval)", "GFLOP/s (of peak)", "speed (interval)", "load s")
_COLUMNS = ("", "precision", *_NUMBERS, "algorithm", "")


def to_json(result: BenchResult) -> str:
    """The whole result with every round's times, in units that the names say; the format is versioned."""
    machine = dataclasses.asdict(result.machine)
    machine["peak_gflops"] = {str(count): value for count, value in result.limits.gflops.items()}
    machine["read_gbs"] = {str(count): value for count, value in result.limits.read_gbs.items()}
    document = {
        "format": FORMAT,
        "date": result.date,
        "complete": result.complete,
        "load": result.load,
        "rounds": result.rounds,
        "seed": result.seed,
        "machine": machine,
        "device": result.device and dataclasses.asdict(result.device),
        "versions": result.versions,
        "groups": [_group_json(result, group) for group in result.groups],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def report(result: BenchResult) -> Report:
    """Tables and summary."""
    sections = [
        Section(title(g), [(cells(result, g, row), _style(row)) for row in g.rows]) for g in result.groups
    ]
    return Report(
        header=header(result), columns=_COLUMNS, numbers=_NUMBERS, sections=sections, summary=summary(result)
    )


def header(result: BenchResult) -> list[str]:
    """Date, machine, its limits and everything's versions, a line each."""
    peaks = ", ".join(f"{value:.0f} ({place(count)})" for count, value in result.limits.gflops.items())
    reads = ", ".join(f"{value:.0f} ({place(count)})" for count, value in result.limits.read_gbs.items())
    versions = {**result.machine.versions, **result.versions}
    busy = result.load > BUSY * result.machine.cores
    return [
        f"{result.date}, {result.rounds} interleaved rounds, seed {result.seed}",
        *([] if result.complete else [INCOMPLETE]),
        *(
            [f"BUSY: a load of {result.load:.1f} at the start; other work disturbs these times"]
            if busy
            else []
        ),
        f"{result.machine.describe()}",
        *(
            result.device.describe()
            if result.device
            else [f"measured peak, f32 multiply-add: {peaks} GFLOP/s; read from memory: {reads} GB/s"]
        ),
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]


def title(group: Group) -> str:
    work = "" if group.flops is None else f", {group.flops / 1e9:.3g} GFLOP"
    why = ", outputs not checked (onnxruntime cannot run it here)"
    measured = any(row.median_seconds for row in group.rows)
    unchecked = why if measured and not group.checked else ""
    shared = f", cores were shared in {group.shared} measurements" if group.shared else ""
    return f"{group.network}, {place(group.threads)}{work}{unchecked}{shared}"


def cells(result: BenchResult, group: Group, row: Row) -> tuple[str, ...]:
    """One cell per column; `speed` is against the group's fastest peer, above 1 is faster than it."""
    if row.median_seconds is None:
        return (row.contestant, row.precision, *[""] * (len(_COLUMNS) - 3), row.reason or "not measured")
    gflops = group.gflops(row)
    share = result.share_of_peak(group, row)
    rate = "" if gflops is None else _significant(gflops)
    rate += "" if share is None else f" ({share:.0%})"
    return (
        row.contestant,
        row.precision,
        _with_range(row.median_seconds, 1e3, _significant),
        rate,
        "" if row.speed is None else _with_range(row.speed, 1, "{:.2f}".format),
        "" if row.prepare_seconds is None else f"{row.prepare_seconds:.2f}",
        row.algorithm,
        _note(group, row),
    )


def summary(result: BenchResult) -> list[str]:
    """What the columns mean, and each subject's wins, ties and losses by name."""
    lines = []
    rows = [row for group in result.groups for row in group.rows if row.median_seconds]
    if rows:
        mixed = any(row.rivals != "f32" for row in rows)
        rival = "time of the fastest peer that rounds no more" if mixed else "fastest f32 peer's time"
        coverage = min(row.median_seconds.coverage for row in rows if row.median_seconds)
        lines.append(
            f"ms: one inference, median over rounds; intervals hold the true median with {coverage:.0%} "
            f"certainty; speed: {rival} / own, paired in each round; "
            "GFLOP/s counts nominal operations; load: until the first outputs, for which burnish compiles "
            "what its cache does not hold"
        )
    subjects = list(
        dict.fromkeys(row.contestant for group in result.groups for row in group.rows if row.subject)
    )
    for subject in subjects:
        verdicts = [
            (verdict(row), row.rivals, f"{group.network} ({place(group.threads)})")
            for group in result.groups
            for row in group.rows
            if row.contestant == subject
        ]
        for word, sentence in _SENTENCES.items():
            for rivals in dict.fromkeys(kind for _, kind, _ in verdicts):
                where = [at for found, kind, at in verdicts if (found, kind) == (word, rivals)]
                if where:
                    lines.append(f"{subject} {sentence.format(rivals)}: {', '.join(where)}")
    return lines


_SENTENCES = {
    "faster": "is faster than every {} peer",
    "tie": f"is within {TIE:.0%} of the fastest {{}} peer, or these rounds do not tell",
    "slower": "is slower than the fastest {} peer",
    "alone": "has no peer to compare with",
    "failed": "failed",
    "absent": "was not measured",
}


def verdict(row: Row) -> str:
    """faster, tie, slower, alone (no peer ran), failed or absent (nothing to measure it on)."""
    if row.median_seconds is None:
        return "failed" if row.failed else "absent"
    if row.speed is None:
        return "alone"
    unsure = row.speed.low <= 1 <= row.speed.high or row.speed.coverage < SURE
    if unsure or abs(row.speed.middle - 1) < TIE:
        return "tie"
    return "faster" if row.speed.middle > 1 else "slower"


def _note(group: Group, row: Row) -> str:
    notes = []
    if row.contestant == group.fastest_peer:
        notes.append("fastest peer")
    if row.subject and row.speed is not None:
        notes.append(verdict(row))
    if row.tuning_seconds is not None:
        notes.append(f"tuned for {row.tuning_seconds:.0f} s")
    if row.error is not None and row.precision != "f32":
        notes.append(f"error {row.error:.0e} of scale")
    return ", ".join(notes)


def _style(row: Row) -> str | None:
    if row.median_seconds is None:
        return "dim"
    if row.subject:
        return {"faster": "green", "slower": "red"}.get(verdict(row), "bold")
    return None


def _group_json(result: BenchResult, group: Group) -> dict[str, Any]:
    return {
        "network": group.network,
        "threads": group.threads,
        "flops": group.flops,
        "checked": group.checked,
        "fastest_peer": group.fastest_peer,
        "shared": group.shared,
        "rows": [_row_json(result, group, row) for row in group.rows],
    }


def _row_json(result: BenchResult, group: Group, row: Row) -> dict[str, Any]:
    document = dataclasses.asdict(row)
    document["error"] = row.error if row.error is not None and math.isfinite(row.error) else None
    document["gflops"] = group.gflops(row)
    document["share_of_peak"] = result.share_of_peak(group, row)
    document["verdict"] = verdict(row) if row.subject else None
    return document


def _with_range(interval: Interval, scale: float, text: Callable[[float], str]) -> str:
    low, middle, high = (text(value * scale) for value in (interval.low, interval.middle, interval.high))
    return f"{middle} ({low}–{high})" if low != high else middle


def _significant(value: float) -> str:
    """Three significant digits without an exponent."""
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
