"""Which cores measure, and who waits for whom."""

import time

import pytest
from burnish.compiler import target
from burnish.op_tuner import cores
from burnish.op_tuner.cores import divide, reserved


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Describes the CPUs of a machine: {CPU: speed}, each a core."""

    def describe(speeds):
        for cpu, speed in speeds.items():
            (tmp_path / f"cpu{cpu}").mkdir()
            if speed:
                file = tmp_path / f"cpu{cpu}" / ("cpu_capacity" if cpu % 2 else "cpufreq/cpuinfo_max_freq")
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"{speed}\n")
        monkeypatch.setattr(target, "CPUS", tmp_path)
        for module in (target, cores):
            monkeypatch.setattr(module, "allowed_cpus", lambda: set(speeds))
        monkeypatch.setattr(cores, "_siblings", lambda cpu: frozenset({cpu}))
        target._speed.cache_clear()

    yield describe
    target._speed.cache_clear()


def test_fast_cores_measure(machine):
    machine({**dict.fromkeys(range(16), 1000), **dict.fromkeys(range(16, 20), 600)})
    assert divide(2).measuring == {14, 15} and {16, 17, 18, 19} <= divide(2).spare
    assert divide(18).measuring == {*range(16), 18, 19}


@pytest.mark.parametrize("speeds", [(0, 0, 0, 0), (1000, 960, 1000, 940)])
def test_among_cores_of_a_kind_the_last_measure(machine, speeds):
    machine(dict(enumerate(speeds)))
    assert divide(1) == cores.Cores(frozenset({3}), frozenset({0, 1, 2}))


def test_no_more_are_spare_than_a_container_may_use(machine, monkeypatch):
    machine(dict.fromkeys(range(8), 0))
    monkeypatch.setattr(cores, "host_threads", lambda: 3)
    assert divide(2) == cores.Cores(frozenset({6, 7}), frozenset({0}))
    assert divide(3) == cores.Cores(frozenset({5, 6, 7}), frozenset())


def test_who_asks_for_a_core_of_another_machine_does_not_wait(monkeypatch, tmp_path):
    """Machines may share a home."""
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    with reserved({0}, 0):
        start = time.monotonic()
        with reserved({0}, 0.2):
            waited = time.monotonic() - start
        monkeypatch.setattr(cores, "_this_boot", lambda: "another")
        start = time.monotonic()
        with reserved({0}, 60):
            assert waited >= 0.2 and time.monotonic() - start < 30
