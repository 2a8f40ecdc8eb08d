"""Choosing within its share of a run: chance draws what would take too long, or is not known yet."""

import os

import pytest
from burnish.op_tuner import choosing
from burnish.op_tuner.chooser import Chooser, Elsewhere
from burnish.op_tuner.choosing import SHARE, Choosing
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.isolate import Spans
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.record import plain
from burnish.op_tuner.records import Records
from burnish.op_tuner.search import Random
from burnish.op_tuner.space import Space
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner

from ..conftest import require_module
from .tasks import double, wait_until

CPUS = os.sched_getaffinity(0)


class Slow(Random):
    """Takes a second to choose; what it chooses is scored."""

    def __init__(self, clock, seconds=1.0):
        super().__init__(Space(double()))
        self.clock, self.seconds, self.chosen = clock, seconds, 0

    def propose(self, count):
        self.clock[0] += self.seconds
        self.chosen += 1
        return super().propose(count)

    def expected(self, points):
        return [0.0] * len(points)


@pytest.fixture
def clock(monkeypatch):
    found = [0.0]
    monkeypatch.setattr(choosing.time, "monotonic", lambda: found[0])
    return found


@pytest.fixture
def here():
    require_module("xgboost")
    return Choosing("annealing", "rank", 0, None, ())


def test_choosing_takes_no_more_than_its_share(here, clock):
    """Half of it at once, the rest as the run goes on."""
    whole = 100.0
    first, second = Slow(clock), Slow(clock)
    found = [here.propose(first, 1, 0.0, whole) for _ in range(9)]
    assert all(points for points, _ in found) and first.chosen == int(SHARE * whole / 2)
    assert [scores is None for _, scores in found] == [n >= first.chosen for n in range(9)]
    assert here.propose(second, 1, 0.0, whole)[1] is None and not second.chosen, "others are no faster"
    for _ in range(50):
        here.propose(second, 1, whole, whole)
    assert first.chosen + second.chosen == int(SHARE * whole)


def test_what_cannot_choose_is_replaced_by_chance(here, clock):
    """Whatever the model's library raises."""

    class Failing(Slow):
        def propose(self, count):
            raise MemoryError

    failing = Failing(clock)
    for _ in range(2):
        points, scores = here.propose(failing, 3, 0.0, 100.0)
        assert len(points) == 3 and scores is None and here.failure == "MemoryError: "


def test_a_space_is_learnt_in_parts(here, clock):
    """What is left of it when the share is used up waits until the run has gone on."""

    class Parts(Slow):
        left = 9

        def prepare(self):
            self.clock[0] += 1.0
            self.left -= 1
            return self.left > 0

    strategy, whole = Parts(clock), 100.0
    assert here.propose(strategy, 1, 0.0, whole)[1] is None and strategy.left == 9 - SHARE * whole / 2
    assert here.propose(strategy, 1, 0.0, whole)[1] is None and not strategy.chosen
    assert here.propose(strategy, 1, whole, whole)[1] == [0.0] and not strategy.left


def test_where_chance_finds_nothing_it_is_chosen(here, clock):
    strategy = Slow(clock, seconds=1e6)
    here.propose(strategy, 1, 0.0, 1.0)
    for point in Random(strategy.space, 1).propose(1000):
        strategy.tell(point, 1.0)
    assert here.propose(strategy, 1, 0.0, 1.0)[0] == [] and strategy.chosen == 2


@pytest.mark.parametrize("name", ("genetic", "random"))
def test_what_learns_nothing_is_always_asked(name, clock):
    found, strategy = Choosing(name, "rank", 0, None, CPUS), Slow(clock)
    assert not isinstance(found.strategy(double()), Elsewhere)
    for _ in range(9):
        assert found.propose(strategy, 1, 0.0, 1.0)[1] == [0.0]


class Measurer:
    """With CPUs to spare; a config's time follows from its answer."""

    def __init__(self):
        self.hardware, self.spans, self.idle, self.ready = this_hardware(), Spans(), CPUS, 0

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            lanes = candidate.config.choose("lanes", (1, 2, 4, 8, 16), 1)
            yield n, Measurement(1e-6 * (20 - lanes), 0.0, 5, config={"lanes": plain(lanes)})


def test_nobody_waits_for_an_answer(tmp_path, monkeypatch):
    """What is measured until it comes is drawn by chance, and asked for once."""
    require_module("xgboost")
    asked = []
    monkeypatch.setattr(Elsewhere, "ready", False)
    monkeypatch.setattr(Elsewhere, "propose", lambda self, count: pytest.fail("waits"))
    monkeypatch.setattr(Chooser, "_send", lambda self, message: asked.append(message))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    found = Tuner([Wanted(double(4096), 1, 1)], records, threads=1, measure=Measurer())
    found.run(trials=12)
    assert found.measured == 12 and len(found.tasks[0].times) == 12
    assert [what for what, *_ in asked].count("propose") == 1
    assert {t.score for t in found.history} == {None}


class Parts(Random):
    """Learns a space in three parts, and tells how many it knows."""

    def __init__(self, task):
        super().__init__(Space(task))
        self.parts = 0

    def prepare(self):
        self.parts += 1
        return self.parts < 3

    def propose(self, count):
        return [(("parts", self.parts),)]


def test_spaces_are_learnt_while_nothing_is_asked():
    chooser = Chooser(Parts, CPUS)
    strategies = [chooser.strategy(double()) for _ in range(3)]
    chooser.prepare(strategies[:1])
    chooser.prepare(strategies[1:])
    for strategy in strategies[1:]:
        wait_until(lambda s=strategy: s.propose(1) == [(("parts", 3),)])
    chooser.close()


def test_what_was_measured_meanwhile_is_not_proposed():
    chooser = Chooser(lambda task: Random(Space(task), 5), CPUS)
    strategy = chooser.strategy(double())
    expected = Random(Space(double()), 5).propose(2)
    strategy.ask(2)
    strategy.tell(expected[0], 1.0)
    assert strategy.propose(2) == expected[1:]
    assert not {expected[0]} & set(strategy.chance(1000))
    chooser.close()
