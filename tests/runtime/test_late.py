"""Modules for a GPU are opened by their first run."""

import threading
import time

import pytest
from burnish.runtime.late import LateModule


class Opened:
    def run(self, feeds, threads, out):
        return feeds


def test_one_thread_opens_it():
    opened = []

    def open():
        time.sleep(0.05)
        opened.append(Opened())
        return opened[-1]

    module = LateModule("m", "opencl", [], [], [], open)
    assert not opened
    callers = [threading.Thread(target=module.run, args=({},)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(opened) == 1


def test_what_could_not_be_opened_is_tried_again():
    tries = iter([OSError("no device"), Opened()])

    def open():
        if isinstance(result := next(tries), OSError):
            raise result
        return result

    module = LateModule("m", "opencl", [], [], [], open)
    with pytest.raises(OSError, match="no device"):
        module.run({"x": 1})
    assert module.run({"x": 1}) == {"x": 1}
