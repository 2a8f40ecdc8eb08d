"""Times are given at one clock of the core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from burnish.op_tuner import clock
from burnish.op_tuner.clock import at_usual_pace, usual_pace
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.measure import Measurement
from burnish.settings import cache_dir

HERE = this_hardware()
FIRST, SLOWER = (Measurement(s, 0.01, 9, pace=p) for s, p in ((2e-3, 1e9), (2.5e-3, 0.8e9)))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "cache"))


def begin_again():
    """As another process."""
    clock._known.cache_clear()


def test_a_slower_clock_is_made_up_for():
    assert at_usual_pace(FIRST, HERE) == FIRST
    assert at_usual_pace(SLOWER, HERE) == replace(SLOWER, seconds=pytest.approx(2e-3))
    other = replace(HERE, cpu="another")
    assert at_usual_pace(SLOWER, other).seconds == 2.5e-3, "each machine has its own"


def test_the_usual_clock_is_the_first():
    assert usual_pace(HERE) == 0.0
    at_usual_pace(FIRST, HERE)
    at_usual_pace(SLOWER, HERE)
    assert usual_pace(HERE) == FIRST.pace and usual_pace(replace(HERE, cpu="another")) == 0.0
    begin_again()
    assert usual_pace(HERE) == FIRST.pace


def test_other_processes_give_times_at_the_same_clock():
    at_usual_pace(FIRST, HERE)
    begin_again()
    assert at_usual_pace(SLOWER, HERE).seconds == pytest.approx(2e-3)


def test_who_writes_first_is_followed():
    path = cache_dir() / "pace.jsonl"
    at_usual_pace(replace(FIRST, pace=3e9), replace(HERE, cpu="another"))  # has read the file
    line = path.read_text().replace("another", HERE.cpu).replace("3000000000.0", "1e9")
    path.write_text(path.read_text() + line)
    assert at_usual_pace(SLOWER, HERE).seconds == pytest.approx(2e-3)


@pytest.mark.parametrize("spoilt", [b"", b"{", b"[]\n", b"\xff\n", b'{"hardware": 3, "pace": 1}\n'])
def test_a_spoilt_file_does_not_matter(spoilt):
    path = cache_dir() / "pace.jsonl"
    path.parent.mkdir()
    path.write_bytes(spoilt)
    at_usual_pace(FIRST, HERE)
    begin_again()
    assert at_usual_pace(SLOWER, HERE).seconds == pytest.approx(2e-3)


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "file"))
    assert at_usual_pace(FIRST, HERE) == FIRST
    assert at_usual_pace(SLOWER, HERE).seconds == pytest.approx(2e-3), "this process keeps to it"


@pytest.mark.parametrize("unknown", [Measurement(1.0, 0.0, 1), Measurement.failed("crash", "")])
def test_what_has_no_pace_stays(unknown):
    at_usual_pace(FIRST, HERE)
    assert at_usual_pace(unknown, HERE) == unknown
