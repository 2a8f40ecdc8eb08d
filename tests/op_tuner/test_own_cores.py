"""Work that is done again while threads share a core."""

import threading

import pytest
from burnish.op_tuner import own_cores
from burnish.op_tuner.cores import Cores
from burnish.op_tuner.own_cores import OwnCores, crowding, seconds_at_once


@pytest.fixture
def seen(monkeypatch):
    """What crowding is found from now on, the last for ever."""
    found = []
    monkeypatch.setattr(own_cores, "crowding", lambda threads: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr(own_cores, "PAUSE", 0.0)
    monkeypatch.setattr(own_cores, "divide", lambda threads: Cores(frozenset(range(2)), frozenset()))
    return found


def counting():
    done = []

    def work():
        done.append(len(done))
        return done[-1]

    return work


@pytest.mark.parametrize(
    "crowded, result",
    [
        ([1.0], 0),
        ([2.0, 1.9, 1.0], 0),  # shared before
        ([1.0, 2.0, 1.0], 1),  # shared afterwards
        ([1.1, 1.14], 0),
        ([2.5, 2.0, 1.0, 2.0, 1.0], 1),
    ],
)
def test_work_is_done_again_while_cores_are_shared(seen, crowded, result):
    seen += crowded
    cores, rests = OwnCores(2, usual=1.0, patience=60), []
    assert cores.during(counting(), lambda: rests.append(0)) == result
    assert cores.usual == 1.0 and len(rests) == 2 * (result + 1)


def test_what_is_usual_is_learnt(seen):
    """Two CPUs that never have a core each are not waited for; before anything is known, nothing is."""
    seen += [2.0, 1.9]
    cores = OwnCores(2, patience=60)
    assert cores.during(counting()) == 0 and cores.usual == 2.0
    seen[:] = [1.0]
    assert cores.during(counting()) == 0 and cores.usual == 1.0
    seen[:] = [1.9]
    assert not cores.look()


def test_one_look_that_seems_too_good_is_not_believed(seen):
    """As where the chain beside it was disturbed."""
    seen += [2.0, 2.0, 0.7, 2.0]
    cores = OwnCores(2)
    assert all(cores.look() for _ in range(4)) and cores.usual == 2.0


@pytest.mark.parametrize("threads", [0, 3])
def test_nothing_is_asked_of_a_gpu_nor_of_more_threads_than_cpus(seen, threads):
    assert OwnCores(threads, usual=1.0).during(counting()) == 0 and not seen


def test_nothing_is_known_where_no_thread_can_be_started(monkeypatch):
    def refused(threads):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(own_cores, "crowding", refused)
    assert OwnCores(1, usual=1.0, patience=60).during(counting()) == 0


def test_work_that_takes_longer_than_patience_is_not_done_again(seen, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(own_cores.time, "monotonic", lambda: float(next(clock)))
    seen += [1.0, 2.0]
    cores = OwnCores(2, usual=1.0, patience=0.5)
    assert cores.during(counting()) == 0 and cores.shared == 1 and cores.patience == 0.5


def test_patience_ends(seen, monkeypatch):
    """Once, for all that is done."""
    seen += [2.0]
    cores = OwnCores(2, usual=1.0, patience=0.05)
    assert cores.during(counting()) == 0 and cores.patience <= 0
    monkeypatch.setattr(own_cores.time, "sleep", None)
    assert cores.during(counting()) == 0 and cores.shared == 2


def test_work_in_vain_takes_patience(seen, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(own_cores.time, "monotonic", lambda: float(next(clock)))
    seen += [1.0, 2.0]
    monkeypatch.setattr(own_cores.time, "sleep", lambda seconds: None)
    cores = OwnCores(2, usual=1.0, patience=2.5)
    assert cores.during(counting()) == 1 and cores.patience == -0.5


def test_patience_grows_by_a_share_of_the_work(seen, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(own_cores.time, "monotonic", lambda: float(next(clock)))
    seen += [1.0]
    cores = OwnCores(2, share=0.25)
    assert [cores.during(counting()) for _ in range(4)] == [0] * 4 and cores.patience == 1.0


def test_threads_begin_together_and_failures_are_raised():
    together = threading.Barrier(3)
    assert 0 < seconds_at_once(lambda _: together.wait(10), 3) < 10
    with pytest.raises(ZeroDivisionError):
        seconds_at_once(lambda n: 1 // n, 1)
    _, accumulators, _ = own_cores.vector_shape()
    for threads in (1, 2):  # others work here, too: no more can be said of both
        least = min(crowding(threads) for _ in range(10))
        assert 0.05 * accumulators < least < 2 * accumulators, "a link takes clocks"
