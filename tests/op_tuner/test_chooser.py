"""Choosing in a process of its own: the same choices, while others measure, and nothing left behind."""

import os
import signal

import pytest
from burnish.errors import InputError, InternalError
from burnish.op_tuner import chooser as chooser_module
from burnish.op_tuner.chooser import Chooser
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
from .tasks import double

CPUS = os.sched_getaffinity(0)


@pytest.fixture(autouse=True)
def no_child_is_left():
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def chooser():
    found = Chooser(lambda task: Random(Space(task), 5), CPUS)
    yield found
    found.close()


def test_it_chooses_as_the_strategy_would(chooser):
    here, there = Random(Space(double()), 5), chooser.strategy(double())
    for _ in range(3):
        points = there.propose(2)
        assert points == here.propose(2) and there.expected(points) is None
        for point in points:
            here.tell(point, 1.0)
            there.tell(point, 1.0)


def test_what_is_being_measured_is_not_proposed_again(chooser):
    task = double()
    strategy = chooser.strategy(task)
    found = []
    while points := strategy.propose(2):
        found += points
    assert len(found) == len(set(found)) == len(set(Random(Space(task)).propose(1000)))


def test_answers_come_to_those_who_asked(chooser):
    first, second = chooser.strategy(double()), chooser.strategy(double())
    first.ask(3)
    second.ask(1)
    second.ask(2)
    assert len(second.propose(2)) == 1 and len(first.propose(3)) == 3 and len(second.propose(2)) == 2


def test_it_begins_anew(chooser):
    """And knows what was told before."""
    strategy = chooser.strategy(double())
    known = strategy.propose(2)
    for point in known:
        strategy.tell(point, 1.0)
    strategy.ask(2)
    chooser.close()
    assert known and not set(strategy.propose(1000)) & set(known)


class Threads(Random):
    """Tells by how many threads numpy's products are computed."""

    def expected(self, points):
        return [float(sum(info["num_threads"] for info in of_numpy())) for _ in points]


def of_numpy():
    pools = require_module("threadpoolctl").ThreadpoolController().select(user_api="blas")
    return [info for info in pools.info() if "numpy" in info["filepath"]]


def test_products_there_are_of_one_thread():
    """Others would wait for each other on the one core that the process keeps to."""
    before = of_numpy()
    if not before:
        pytest.skip("numpy's products are of a library whose threads cannot be counted")
    chooser = Chooser(lambda task: Threads(Space(task), 5), CPUS)
    try:
        strategy = chooser.strategy(double())
        points = strategy.propose(2)
        assert points and strategy.expected(points) == [1.0] * len(points)
    finally:
        chooser.close()
    assert of_numpy() == before


class Failing(Random):
    def __init__(self, act):
        super().__init__(Space(double()))
        self.propose = lambda count: act()


def refuse():
    raise InputError("no more")


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (refuse, InputError, "no more"),
        (lambda: 1 / 0, InternalError, "ZeroDivisionError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), InternalError, "has ended"),
    ],
)
def test_errors(act, error, says):
    chooser = Chooser(lambda task: Failing(act), CPUS)
    with pytest.raises(error, match=says):
        chooser.strategy(double()).propose(1)
    chooser.close()


def test_a_tuner_whose_chooser_ends_goes_on_by_chance(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "burnish.op_tuner.chooser._choose", lambda *asked: os.kill(os.getpid(), signal.SIGKILL)
    )
    require_module("xgboost")
    records = Records(tmp_path / "r.jsonl", shipped=False)
    found = Tuner([Wanted(double(), 1, 1)], records, threads=1, measure=Measurer())
    found.run(trials=100)
    (task,) = found.tasks
    assert task.exhausted and set(task.times) == set(Random(task.space).propose(1000))
    assert found.by_chance == "the process that chooses configs has ended"


def test_where_there_can_be_no_process_for_a_while(tmp_path, monkeypatch):
    """Chance chooses until there can."""
    require_module("xgboost")
    left, begin = iter(range(3)), chooser_module.begin_server

    def begin_server(serve):
        if next(left, None) is not None:
            raise BlockingIOError("no more processes")
        return begin(serve)

    monkeypatch.setattr(chooser_module, "begin_server", begin_server)
    records = Records(tmp_path / "r.jsonl", shipped=False)
    found = Tuner([Wanted(double(4096), 1, 1)], records, threads=1, measure=Measurer())
    found.run(trials=100)
    assert found.tasks[0].exhausted and not found.failure and not found.by_chance and next(left, None) is None


def test_one_that_ended_is_begun_again(tmp_path):
    """And told and asked everything again."""
    ended = tmp_path / "ended"

    class Once(Random):
        def propose(self, count):
            if not ended.exists():
                ended.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [(("known", len(self.times)),)] * count

    chooser = Chooser(lambda task: Once(Space(task)), CPUS)
    first, second = chooser.strategy(double()), chooser.strategy(double(101))
    first.tell((("lanes", 1),), 1.0)
    first.ask(2)
    second.ask(3)
    assert second.propose(3) == [(("known", 0),)] * 3 and first.propose(2) == [(("known", 1),)] * 2
    chooser.close()


class Measurer:
    """With CPUs to spare; a config's time follows from its answer."""

    def __init__(self):
        self.hardware, self.spans, self.idle, self.ready = this_hardware(), Spans(), CPUS, 0

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            lanes = candidate.config.choose("lanes", (1, 2, 4, 8, 16, 32), 1)
            yield n, Measurement(1e-6 * (40 - lanes), 0.0, 5, config={"lanes": plain(lanes)})


def test_a_tuner_asks_ahead(tmp_path):
    require_module("xgboost")
    records = Records(tmp_path / "r.jsonl", shipped=False)
    found = Tuner([Wanted(double(), 1, 1)], records, threads=1, measure=Measurer())
    for trials in (3, 100):
        found.run(trials=trials)
    (task,) = found.tasks
    assert task.exhausted and dict(task.best)["lanes"] == max(dict(p)["lanes"] for p in task.times)
    assert set(task.times) == set(Random(task.space).propose(1000))
