"""Functions learnt from examples: what each output depends on, what was not seen, what does not matter."""

import numpy as np
import pytest
from burnish.op_tuner.factored import BITS, Factored

SIZES = (4, 5, 3, 60, 2)


def inputs(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, count) for size in SIZES], axis=1)


def outputs(x):
    """Of none, one, two and three inputs."""
    a, b, c, _, e = x.T
    return np.stack(
        [np.full(len(x), 7.0), 10.0 - a, a * b + 0.5, np.where(e == 1, a * c, -b), c * 1e9]
    ).astype(float)


def test_learns_what_it_is_shown():
    x, held = inputs(1500), inputs(300, 1)
    learnt = Factored()
    learnt.fit(x, outputs(x))
    found, unseen = learnt(held)
    sure = learnt.sure(unseen, np.zeros((300, 0), bool))
    np.testing.assert_array_equal(found, outputs(held))
    assert sure.all() and {tuple(t.support) for t in learnt.tables} == {(), (0,), (0, 1), (0, 1, 2, 4), (2,)}
    for n, row in enumerate(found):
        np.testing.assert_array_equal(learnt.one(n, held), row)


def test_unseen_combinations_are_not_sure():
    """They get the values of the most similar combination."""
    x = np.stack(np.meshgrid(range(4), range(5), range(3)), axis=-1).reshape(-1, 3)
    y = (10.0 * x[:, 0] + x[:, 1])[None]
    hidden = (x[:, 0] == 2) & (x[:, 1] >= 3)
    learnt = Factored()
    learnt.fit(x[~hidden], y[:, ~hidden])
    found, unseen = learnt(x)
    np.testing.assert_array_equal(learnt.sure(unseen, np.zeros((len(x), 0), bool)), ~hidden)
    np.testing.assert_array_equal(found[:, ~hidden], y[:, ~hidden])
    similar = found[0][hidden] - y[0][hidden]
    assert set(np.abs(similar)) <= {1.0, 10.0, 2.0}
    again, unseen = learnt(x)  # what was guessed stays unsure
    np.testing.assert_array_equal(found, again)
    assert not learnt.sure(unseen, np.zeros((len(x), 0), bool))[hidden].any()


def test_larger_numbers_than_in_any_example():
    x = inputs(200)
    learnt = Factored()
    learnt.fit(x, outputs(x))
    beyond = np.array([[9, 9, 9, 99, 9]])
    found, unseen = learnt(np.concatenate([x, beyond]))
    np.testing.assert_array_equal(found[:, :-1], outputs(x))
    np.testing.assert_array_equal(learnt.sure(unseen, np.zeros((201, 0), bool)), [*[True] * 200, False])


def test_a_new_example_changes_what_explains():
    """Input 4 matters where input 0 is 3, of which the first examples know nothing."""
    x = inputs(300)
    y = np.where((x[:, 0] == 3) & (x[:, 4] == 1), -1.0, x[:, 1])[None]
    few = x[:, 0] < 3
    learnt = Factored()
    learnt.fit(x[few], y[:, few])
    assert [tuple(t.support) for t in learnt.tables] == [(1,)]
    learnt.fit(x, y)
    assert [tuple(t.support) for t in learnt.tables] == [(0, 1, 4)]


def test_numbers_that_an_example_does_not_tell():
    """The second output is known where the first is 1, and only matters there."""
    x = inputs(300)
    there = (x[:, 2] > 0).astype(float)
    y = np.stack([there, np.where(there > 0, 5.0 * x[:, 0] + x[:, 4], np.nan)])
    learnt = Factored()
    learnt.fit(x, y, gates=np.array([-1, 0]))
    assert {tuple(t.support) for t in learnt.tables} == {(2,), (0, 4)}
    held = inputs(100, 1)
    found, unseen = learnt(held)
    np.testing.assert_array_equal(found[1], 5.0 * held[:, 0] + held[:, 4])
    few = (x[:, 0] == 1) & (x[:, 4] == 1) & (there > 0)
    learnt.fit(x[~few], y[:, ~few], gates=np.array([-1, 0]))
    found, unseen = learnt(held)
    doubt = (held[:, 0] == 1) & (held[:, 4] == 1)
    sure = learnt.sure(unseen, (found[:1] > 0).T)
    np.testing.assert_array_equal(sure, ~(doubt & (held[:, 2] > 0)))


@pytest.mark.parametrize("groups", [1, BITS - 1, BITS, 3 * BITS])
def test_many_groups(groups):
    """Output n is unknown where the input is n; each group is told from all others."""
    x = np.arange(groups)[:, None]
    y = np.where(np.eye(groups, dtype=bool), np.nan, x.T + np.arange(groups)[:, None])
    learnt = Factored()
    learnt.fit(x, y.astype(float), gates=np.arange(groups))
    _, unseen = learnt(x)
    np.testing.assert_array_equal(learnt.sure(unseen, np.eye(groups, dtype=bool)), np.zeros(groups, bool))
    np.testing.assert_array_equal(learnt.sure(unseen, ~np.eye(groups, dtype=bool)), np.ones(groups, bool))


def test_only_allowed_inputs():
    """The first is explained by what it may not depend on."""
    x = inputs(300)
    y = np.stack([x[:, 0] + 0.0, x[:, 0] + 0.0])
    learnt = Factored()
    learnt.fit(x, y, allowed=np.array([[False, *[True] * 4], [True] * 5]))
    assert {tuple(t.support) for t in learnt.tables} == {(1, 2, 3, 4), (0,)}


def test_nothing_to_learn():
    learnt = Factored()
    learnt.fit(np.zeros((1, 0), int), np.array([[3.0]]))
    found, unseen = learnt(np.zeros((4, 0), int))
    assert (found == 3).all() and learnt.sure(unseen, np.zeros((4, 0), bool)).all()
