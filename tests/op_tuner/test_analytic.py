"""The analytic score knows register tiles before anything is measured."""

from __future__ import annotations

import random

import numpy as np
import pytest
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import TARGETS
from burnish.op_tuner.analytic import Analytic, loads
from burnish.op_tuner.features import evaluate
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.sketch import sketch
from burnish.op_tuner.space import Space
from burnish.workloads import direct_convolution, matrix_product

from ..conftest import require_module

TARGET = TARGETS["x86-64-v3"]


def drawn(task, count=30):
    """Points by chance, and the features of their programs."""
    space, rng = Space(task), random.Random(0)
    points = [space.draw(rng) for _ in range(count)]
    return points, evaluate([sketch(scheduled(task, Space.config(p)), 1) for p in points])


@pytest.mark.parametrize("name", ["c3", "c9"])
def test_loads_of_a_register_tile(name):
    """P pixels and C vectors of channels: a vector of weights for P products, a broadcast for C."""
    points, rows = drawn(direct_convolution(name, TARGET))
    for point, found in zip(points, loads(rows)):
        tile = {knob: n for knob, n in point if knob.startswith("tile_")}
        columns = tile.pop("tile_c")
        pixels = int(np.prod(list(tile.values())))
        least = 1 / pixels + 1 / columns
        assert 0.3 * least <= found <= 1.01 * least, (point, found)  # taps that are written out share pixels
    assert np.ptp(loads(rows)) > 0.2


def test_scores_of_any_program_are_finite_and_fall_with_loads():
    _, rows = drawn(matrix_product(64, TARGET))
    scores = Analytic().predict(rows)
    assert np.isfinite(scores).all()
    order = np.argsort(loads(rows), kind="stable")
    assert (np.diff(scores[order]) <= 0).all()
    nothing = Analytic().predict(np.zeros_like(rows))
    assert np.isfinite(nothing).all() and len(Analytic().predict(rows[:0])) == 0


def test_models_begin_with_it():
    require_module("xgboost")
    task = direct_convolution("c9", TARGET)
    points, rows = drawn(task)
    own = Learner().task(task)
    assert not own.ready(), "chance begins"
    np.testing.assert_allclose(own.scores(points), Analytic().predict(rows), rtol=1e-6)
