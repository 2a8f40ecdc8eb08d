"""The page of a tuning: well-formed, on its own, and showing what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import pytest
from burnish.commands.charts import Chart, Scale, span
from burnish.commands.machine import Limits
from burnish.commands.tune import _summary
from burnish.commands.tune_page import accuracies, page
from burnish.network_plans import Change
from burnish.op_tuner.forecast import Forecast
from burnish.op_tuner.tuner import Spent, Trial
from burnish.tuning import TunedKernel, Tuning

INF = float("inf")
LIMITS = Limits({2: 200.0}, {2: 20.0})


def trials(scores, seconds, batch=1, task="a"):
    return [Trial(task, batch, s, t, 1e-3, 5e-3, 1.0) for s, t in zip(scores, seconds)]


def kernel(name="conv<3>", **fields):
    given = {
        "algorithm": "direct",
        "count": 2,
        "predicted_count": 2,
        "trials": 9,
        "configs": 100.0,
        "before": 2e-3,
        "after": 1e-3,
    }
    given |= {"config": {}, "task": "a", "inside": None, "flops": 10**8, "nbytes": 10**6}
    return TunedKernel(name, **{**given, **fields})


def tuning(kernels, history=(), changes=(), forecast=None):
    how = (Path("r.jsonl"), 2, len(history), 60.0, False, Spent(60.0, 30.0, 20.0, 10.0), forecast)
    return Tuning(tuple(kernels), tuple(changes), *how, tuple(history), "", {}, "", "")


def drawn(found):
    text = page(found, "net & co", LIMITS)
    assert text.startswith("<!DOCTYPE html>") and "http" not in text.replace("http://www.w3.org", "")
    return text, xml.fromstring(text.split("\n", 1)[1])


def test_what_was_measured_is_shown():
    history = trials([None] * 2, [2e-3, 1e-3], 0) + trials([1.0, 2.0, 3.0, 4.0], [4e-3, 3e-3, 2e-3, 1e-3])
    changes = [Change("conv1", "direct, plain → plain", "im2row, plain → plain")]
    kernels = [kernel(), kernel("replaced", count=0, task="b"), kernel("failing", before=INF, after=INF)]
    text, root = drawn(tuning(kernels, history, changes, Forecast(61.0, 9, 4e-3, 2e-3, 20.0)))
    svg = "{http://www.w3.org/2000/svg}"
    assert len(list(root.iter(f"{svg}svg"))) == 4
    names = [title.text for title in root.iter(f"{svg}title")]
    assert "conv<3>, direct: 100.0 GFLOP/s" in names and "conv<3>, direct: 50.0 GFLOP/s before" in names
    assert "batch 1: 1.00 of 4" in names and "200 GFLOP/s" in names
    assert "limits of the machine that measured are not known" not in text
    assert "2 → 0" in text and "2.00×" in text and "conv1" in text and "forecast 61 s" in text
    assert "6 configs in 60 s; of this time: 50% building, 33% running, 17% the tuner itself; " in text


def test_nothing_was_measured():
    drawn(tuning([]))
    drawn(tuning([kernel(before=INF, after=INF, trials=0)]))


def test_accuracies():
    times = [4.0, 3.0, 2.0, 1.0, None]
    worst_last = [1, 2, 3, 4, 0]
    (found,) = accuracies(trials(worst_last, times))
    assert found.spearman == pytest.approx(1) and found.count == 5
    (found,) = accuracies(trials([-s for s in worst_last], times, 7))
    assert found.spearman == pytest.approx(-1) and found.batch == 7
    assert accuracies(trials([1, 1, 1, 1], times)) == [] == accuracies(trials([1, 2], times))
    (tied,) = accuracies(trials([1, 1, 2, 2], [4.0, 4.0, 1.0, 1.0]))
    assert tied.spearman == pytest.approx(1)


@pytest.mark.parametrize(("low", "high", "log"), [(0, 57, False), (3.2, 3.9, False), (0.5, 4000, True)])
def test_ticks_are_round_and_inside(low, high, log):
    ticks = Scale(low, high, 100, log).ticks()
    assert 3 <= len(ticks) <= 15 and ticks == sorted(ticks)
    assert all(low <= t <= high and float(f"{t:.2g}") == pytest.approx(t) for t in ticks)


def test_marks_stand_where_their_values_are():
    chart = Chart("t", "x", "y", (0, 10), (1, 100), y_log=True)
    left, bottom = chart._place(0, 1)
    right, top = chart._place(10, 100)
    assert chart._place(5, 10) == (pytest.approx((left + right) / 2), pytest.approx((bottom + top) / 2))
    chart.dot(11, 5, "#000", "outside")
    assert "outside" not in chart.svg()


def test_spans():
    assert span([]) == (0.0, 2.0) and span([INF, 2.0, 4.0]) == pytest.approx((1.9, 4.1))
    low, high = span([0.0, 1.0, 100.0], log=True)
    assert 0 < low < 1 and high > 100


def test_elsewhere_there_is_no_roofline():
    """Workers and simulations are other machines; what this one can do says nothing of them."""
    text = page(tuning([kernel()]), "net", None)
    xml.fromstring(text.split("\n", 1)[1])
    assert "limits of the machine that measured are not known" in text and "Measured peak" not in text


def test_configs_of_another_machine_are_reported():
    found = replace(tuning([kernel()]), hints={"A CPU, znver9, 8 cores": 3})
    assert "3 kernels began with what was the best on A CPU, znver9, 8 cores" in _summary(found, "burnish")
