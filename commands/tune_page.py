"""A tuning as one page of HTML that needs nothing else: course, accuracy of the model, times, roofline.

The page is well-formed XML too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from ..op_tuner.tuner import Trial
from ..tuning import TunedKernel, Tuning
from .charts import STYLE as CHARTS
from .charts import Chart, span
from .machine import Limits
from .report import threads_text

BEFORE, AFTER = "#a8b0ba", "#2f6fb3"
COLOURS = ("#2f6fb3", "#2a8c6a", "#8a56ac", "#b5492f", "#a8841c", "#3c8ea8", "#b04a84", "#5d7a2e")
LEAST_BATCH = 4  # measurements of a batch whose order says something
WINDOW = 8  # batches of the running mean

STYLE = (
    """
:root { font: 13px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; color: #1d2430; background: #f5f6f8; }
body { margin: 0 auto; max-width: 1380px; padding: 18px 24px; }
h1 { font-size: 17px; margin: 0 0 2px; } h2 { font-size: 14px; margin: 0 0 4px; } p { margin: 2px 0 8px; }
p { color: #5a6472; } main { display: flex; flex-wrap: wrap; gap: 18px; margin-top: 14px; }
section { background: #fff; border: 1px solid #dfe3e8; border-radius: 6px; padding: 14px 16px; }
section { box-sizing: border-box; flex: 1 1 600px; max-width: 660px; }
table { border-collapse: collapse; font-size: 11.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #5a6472; border-bottom: 1px solid #cfd5dc; padding: 3px 6px; }
td { padding: 2px 6px; border-bottom: 1px solid #eef0f3; } .r { text-align: right; white-space: nowrap; }
.bar { height: 7px; border-radius: 2px; margin: 1px 0; }
.wide { flex: 1 1 100%; max-width: none; overflow-x: auto; }
"""
    + CHARTS
)


@dataclass(frozen=True)
class Accuracy:
    """How a batch's order by the model agrees with its order by time: 1 is the same, 0 is chance."""

    batch: int
    spearman: float
    count: int


def page(found: Tuning, title: str, limits: Limits | None) -> str:
    """`limits` are those on as many threads of the machine that measured; None where they are not known."""
    name = escape(f"{title}: tuned on {threads_text(found.threads)}")
    sections = (_course(found), _tasks_course(found), _model(found), _roofline(found, limits), _times(found))
    parts = [
        f'<html lang="en"><head><meta charset="utf-8"/><title>{name}</title><style>{STYLE}</style></head>',
        f"<body><h1>{name}</h1><p>{escape(_summary(found))}</p>",
        f"<main>{''.join(sections)}</main>{_changes(found)}</body></html>",
    ]
    return "<!DOCTYPE html>\n" + "\n".join(parts) + "\n"


def accuracies(history: Sequence[Trial]) -> list[Accuracy]:
    """Of the batches that a model chose; what failed counts as slower than all else."""
    batches: dict[int, list[Trial]] = {}
    for trial in history:
        if trial.score is not None and math.isfinite(trial.score):
            batches.setdefault(trial.batch, []).append(trial)
    found = []
    for batch, trials in batches.items():
        scores = np.array([t.score for t in trials])
        speeds = np.array([0.0 if t.seconds is None else 1 / t.seconds for t in trials])
        if len(trials) >= LEAST_BATCH and np.ptp(scores) > 0 and np.ptp(speeds) > 0:
            agreement = float(np.corrcoef(_ranks(scores), _ranks(speeds))[0, 1])
            found.append(Accuracy(batch, agreement, len(trials)))
    return found


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _summary(found: Tuning) -> str:
    text = f"{found.measured} configs in {found.seconds:.0f} s; {found.spent}"
    if math.isfinite(found.before) and 0 < found.after < math.inf:
        text += f"; {1e3 * found.before:.3f} ms before, {1e3 * found.after:.3f} ms after"
        text += f" ({found.before / found.after:.2f}×): the sum of all kernels"
    if found.forecast is not None:
        text += f"; forecast {found.forecast.seconds:.0f} s and {found.forecast.gain:.2f}×"
    return text


def _section(title: str, text: str, inner: str, wide: bool = False) -> str:
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2><p>{escape(text)}</p>{inner}</section>"


def _course(found: Tuning) -> str:
    points = [(n, 1e3 * t.network) for n, t in enumerate(found.history, 1) if math.isfinite(t.network)]
    chart = Chart(
        "the network's time by trial",
        x_title="trial",
        y_title="ms, all kernels",
        x=(0, max(1, len(found.history))),
        y=span([y for _, y in points]),
    )
    chart.line(points, AFTER)
    text = "All kernels of the plan of then, with the best configs so far. It may rise: "
    text += "a plan is solved again, a lucky time is not confirmed."
    return _section("Best so far", text, chart.svg())


def _tasks_course(found: Tuning) -> str:
    """Of the kernels that are tuned most."""
    by_task: dict[str, list[float]] = {}
    for trial in found.history:
        by_task.setdefault(trial.task, []).append(trial.best)
    kernels = sorted(found.kernels, key=lambda k: -len(by_task.get(k.task, ())))[: len(COLOURS)]
    lines = {}
    for k in kernels:
        bests = [k.before / b for b in by_task.get(k.task, ()) if 0 < b < math.inf]
        if len(bests) > 1 and k.before < math.inf:
            lines[k.task] = (k, bests)
    most = max((len(bests) for _, bests in lines.values()), default=1)
    ends = span([1.0, *(b for _, bests in lines.values() for b in bests)])
    chart = Chart(
        "speed-up by trial of the task",
        x_title="trial of the task",
        y_title="× the default",
        x=(0, most),
        y=ends,
    )
    for colour, (k, bests) in zip(COLOURS, lines.values()):
        chart.line(list(enumerate(bests, 1)), colour, f"{k.name}, {k.algorithm}")
    return _section("Best so far, by kernel", "Of the kernels that were measured most.", chart.svg())


def _model(found: Tuning) -> str:
    known = accuracies(found.history)
    last = max((a.batch for a in known), default=1)
    chart = Chart(
        "rank correlation by batch", x_title="batch", y_title="Spearman", x=(0, last + 1), y=(-1.05, 1.05)
    )
    for a in known:
        chart.dot(a.batch, a.spearman, COLOURS[2], f"batch {a.batch}: {a.spearman:.2f} of {a.count}", True)
    means = [
        (a.batch, float(np.mean([b.spearman for b in known[max(0, n + 1 - WINDOW) : n + 1]])))
        for n, a in enumerate(known)
    ]
    chart.line(means, COLOURS[2], f"mean of {WINDOW} batches")
    text = "Order of each batch as the model gave it, against the measured one; 1 is the same, 0 is chance."
    if not known:
        text += " No model chose a batch of this tuning."
    return _section("Accuracy of the model", text, chart.svg())


def _roofline(found: Tuning, limits: Limits | None) -> str:
    if limits is None:
        return _section("Roofline", "The limits of the machine that measured are not known here.", "")
    peak, read = limits.gflops[found.threads], limits.read_gbs[found.threads]
    working = [k for k in found.kernels if k.count and 0 < k.after <= k.before < math.inf]
    known = [k for k in working if k.flops and k.nbytes]
    rates = [r for k in known for r in (_gflops(k, k.before), _gflops(k, k.after))]
    across = span([peak / read, *(k.flops / k.nbytes for k in known)], log=True)
    up = span([peak, *rates], log=True)
    chart = Chart(
        "roofline",
        x_title="FLOP per byte of operands",
        y_title="GFLOP/s",
        x=across,
        y=up,
        x_log=True,
        y_log=True,
    )
    start = max(across[0], up[0] / read)
    chart.line([(start, start * read), (peak / read, peak)], "#1d2430", f"{read:.0f} GB/s", "5 4")
    chart.line([(peak / read, peak), (across[1], peak)], "#1d2430", f"{peak:.0f} GFLOP/s", "5 4")
    for k in known:
        x, name = k.flops / k.nbytes, f"{k.name}, {k.algorithm}"
        before, after = _gflops(k, k.before), _gflops(k, k.after)
        chart.line([(x, before), (x, after)], BEFORE)
        chart.dot(x, before, BEFORE, f"{name}: {before:.1f} GFLOP/s before", True)
        chart.dot(x, after, AFTER, f"{name}: {after:.1f} GFLOP/s")
    text = f"Measured peak {peak:.0f} GFLOP/s, memory {read:.1f} GB/s. Operations are nominal: "
    text += "fast algorithms, such as Winograd's, may exceed the peak, and operands in a cache the slope."
    return _section("Roofline", text, chart.svg())


def _gflops(kernel: TunedKernel, seconds: float) -> float:
    return kernel.flops / seconds / 1e9


def _times(found: Tuning) -> str:
    longest = max(map(_longest, found.kernels), default=0.0)
    kernels = sorted(found.kernels, key=lambda k: -_longest(k))
    titles = (
        "kernel",
        "algorithm",
        "calls",
        "trials",
        "of configs",
        "before µs",
        "after µs",
        "speed-up",
        "in all calls",
    )
    head = "".join(f'<th class="{"r" if 1 < n < 8 else ""}">{t}</th>' for n, t in enumerate(titles))
    rows = "".join(_row(k, longest or 1.0) for k in kernels)
    text = "One call with the default config and with the best; the bars are all calls of the network, "
    text += "before (grey) and after. Where calls changed, another algorithm or layout took their place."
    return _section("Time by kernel", text, f"<table><tr>{head}</tr>{rows}</table>", wide=True)


def _share(calls: int, seconds: float) -> float:
    return calls * seconds if calls and math.isfinite(seconds) else 0.0


def _longest(k: TunedKernel) -> float:
    return max(_share(k.predicted_count, k.before), _share(k.count, k.after))


def _row(k: TunedKernel, longest: float) -> str:
    calls = str(k.count) if k.count == k.predicted_count else f"{k.predicted_count} → {k.count}"
    times = [f"{1e6 * s:.1f}" if math.isfinite(s) else "–" for s in (k.before, k.after)]
    ratio = f"{k.before / k.after:.2f}×" if 0 < k.after <= k.before < math.inf else "–"
    numbers = "".join(
        f'<td class="r">{text}</td>' for text in (calls, str(k.trials), f"{k.configs:.2g}", *times, ratio)
    )
    shares = ((BEFORE, _share(k.predicted_count, k.before)), (AFTER, _share(k.count, k.after)))
    bars = "".join(
        f'<div class="bar" style="width:{280 * s / longest:.1f}px;background:{c}"></div>' for c, s in shares
    )
    return f"<tr><td>{escape(k.name)}</td><td>{escape(k.algorithm)}</td>{numbers}<td>{bars}</td></tr>"


def _changes(found: Tuning) -> str:
    if not found.changes:
        return ""
    head = "<tr><th>node</th><th>without measuring</th><th>tuned</th></tr>"
    rows = "".join(
        f"<tr><td>{escape(c.node)}</td><td>{escape(c.before)}</td><td>{escape(c.after)}</td></tr>"
        for c in found.changes
    )
    return f"<section><h2>What the plan does otherwise</h2><table>{head}{rows}</table></section>"
