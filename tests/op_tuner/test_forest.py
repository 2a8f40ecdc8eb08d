"""The walk through tables of trees, compared with xgboost's own, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from burnish.errors import InternalError
from burnish.op_tuner.forest import Forest
from burnish.op_tuner.pretrained import FOLDER, load

from ..conftest import require_module

xgboost = require_module("xgboost")
COLUMNS = 7


def fitted(depth: int, rounds: int, rows: np.ndarray) -> Any:
    random = np.random.default_rng(depth)
    labels = rows[:, 0] * rows[:, 1] + random.standard_normal(len(rows)) - rows[:, 2]
    parameters = {"max_depth": depth, "base_score": 0.0, "nthread": 1, "min_child_weight": 0.0, "gamma": 1e-4}
    return xgboost.train(parameters, xgboost.DMatrix(rows, label=labels), rounds)


def random_rows(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).uniform(0, 4, (count, COLUMNS)).astype(np.float32)
    rows[:, ::2] = np.floor(rows[:, ::2])  # equal to thresholds, and zeros, now and then
    return rows


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("rounds", [0, 1, 17])
def test_sums_are_those_of_xgboost(depth, rounds):
    booster = fitted(depth, rounds, random_rows(200))
    forest = Forest(booster)
    assert len(forest.leaves) == rounds and forest.depth <= depth
    for count in (0, 1, 15, 16, 33, 200):
        rows = random_rows(count, seed=1)
        expected = booster.inplace_predict(rows, predict_type="margin") if count else np.zeros(0, np.float32)
        np.testing.assert_array_equal(forest(rows), expected)


def test_trees_that_end_early():
    rows = np.zeros((20, COLUMNS), np.float32)
    rows[:3, 1] = [1, 2, 3]
    uneven = fitted(6, 3, rows)  # what has one value only is not divided any more
    same = fitted(3, 2, np.zeros((20, COLUMNS), np.float32))
    for booster in (uneven, same):
        np.testing.assert_array_equal(
            Forest(booster)(rows), booster.inplace_predict(rows, predict_type="margin")
        )
    assert Forest(same).depth == 0 < Forest(uneven).depth


def test_thresholds_below_zero():
    rows = random_rows(50)
    booster = fitted(3, 5, rows - np.float32(2))
    assert (Forest(booster).thresholds == 0).any()
    np.testing.assert_array_equal(Forest(booster)(rows), booster.inplace_predict(rows, predict_type="margin"))


def test_rows_of_another_kind():
    booster = fitted(2, 3, random_rows(50))
    rows = random_rows(8)
    rows[2, :3] = np.finfo(np.float32).max
    expected = booster.inplace_predict(rows, predict_type="margin")
    doubles = np.asfortranarray(rows.astype(float))
    np.testing.assert_array_equal(Forest(booster)(doubles), Forest(booster)(rows))
    np.testing.assert_array_equal(Forest(booster)(rows), expected)
    for wrong in (-1, -0.0, np.nan):
        rows[5, 3] = wrong
        with pytest.raises(InternalError, match="negative"):
            Forest(booster)(rows)
    with pytest.raises(InternalError, match=f"rows of {COLUMNS} numbers"):
        Forest(booster)(random_rows(8)[:, 1:])


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.model")), ids=lambda path: path.name)
def test_what_ships_is_walked(path):
    model, about = load(path)
    rows = np.random.default_rng(0).uniform(0, 20, (65, about.columns)).astype(np.float32)
    expected = model._trees.inplace_predict(rows, predict_type="margin")
    np.testing.assert_array_equal(model.added(rows), expected)
    np.testing.assert_array_equal(model.predict(rows), expected)
