"""Workers of dask on loopback: one measurement at a time on a device, and nothing is lost with a worker."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing.connection import wait
from threading import Thread
from types import SimpleNamespace

import pytest
from burnish.cli import cli
from burnish.compiler.ops.matmul import MatMul
from burnish.errors import InputError, RunError, ToolError
from burnish.op_tuner import device, isolate, workers
from burnish.op_tuner.isolate import Candidate
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Space
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner
from burnish.op_tuner.workers import Workers, serve

from ..conftest import require_module
from .tasks import double, op_task, wait_until
from .test_isolate import alive

require_module("distributed")


class Site:
    """Workers in processes of their own, and a scheduler with the first. `log` tells what ran when: device,
    start, end."""

    def __init__(self, folder):
        self.log, self.pids, self.address = folder / "log", [], None

    def begin(self) -> int:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                tempfile.tempdir = str(self.log.parent)
                isolate.run = self.logged(isolate.run)
                device.start()
                serve(self.address, ready=lambda address: os.write(writing, address.encode()))
            finally:
                os._exit(0)
        os.close(writing)
        self.pids.append(pid)
        with os.fdopen(reading, "rb", 0) as stream:
            assert wait([stream], 60), "the worker does not begin"
            self.address = stream.read(100).decode()
        assert self.address.startswith("tcp://127.0.0.1:")
        return pid

    def logged(self, run):
        def wrapper(*args, **options):
            start = time.monotonic()
            result = run(*args, **options)
            with self.log.open("a") as f:
                f.write(f"{os.getppid()} {start} {time.monotonic()}\n")
            return result

        return wrapper

    def spans(self):
        """By device: when something ran on it."""
        found = {}
        if not self.log.exists():
            return found
        for line in self.log.read_text().splitlines():
            pid, start, end = line.split()
            found.setdefault(int(pid), []).append((float(start), float(end)))
        return {pid: sorted(spans) for pid, spans in found.items()}

    def kill_when_it_has_measured(self, worker):
        """One or two candidates of several that it was given at once."""
        wait_until(lambda: any(parent(pid) == worker for pid in self.spans()))
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        self.pids.remove(worker)

    def end(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def site(tmp_path):
    """The first worker keeps the scheduler."""
    site = Site(tmp_path)
    try:
        site.begin()
        yield site
    finally:
        site.end()


def test_a_task_is_the_same_elsewhere():
    task = op_task(MatMul(), "f32[24,20]", "f32[20,32]")
    other = pickle.loads(pickle.dumps(Candidate(task, Space.config(Space(task).default()))))
    assert (other.task.key, other.task.digest) == (task.key, task.digest)


def test_two_devices_measure_one_at_a_time_and_a_killed_one_loses_nothing(site, tmp_path):
    second = site.begin()
    records = Records(tmp_path / "records.jsonl", shipped=False)
    measure = Workers(site.address, 1, seconds=0.02)
    tasks = [Wanted(double(n), 1, 1) for n in range(100, 117)]
    tuner = Tuner(tasks, records, threads=1, strategy="random", measure=measure)
    killing = Thread(target=site.kill_when_it_has_measured, args=(second,))
    killing.start()
    tuner.run(trials=17)
    killing.join()
    measure.close()
    assert not tuner.interrupted
    assert tuner.measured == 17 and not [r for r in records if r.error]
    assert len({r.task for r in records}) == 17 and {r.hardware for r in records} == {measure.hardware}
    spans = site.spans()
    assert len(spans) == 2, "both have measured"
    for ran in spans.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ran))
    assert [alive(pid) for pid in spans].count(True) == 1, "the killed one's process ended with it"
    assert 0 < tuner.spent.overhead < tuner.spent.whole


def test_workers_of_another_burnish_are_refused(site, monkeypatch):
    monkeypatch.setattr(workers, "made_by", lambda: "0123 1.2.3")
    with pytest.raises(InputError, match=r"the workers run Burnish \w+ [\d.]+, this is 0123 1.2.3: install"):
        Workers(site.address, 1)


def test_more_threads_than_a_worker_has_cores_are_refused(site):
    with pytest.raises(
        InputError, match=r"5000 threads, but a worker may use \d+ cores: ask for \d+ or fewer"
    ):
        Workers(site.address, 5000)


def not_there(*anything):
    raise ModuleNotFoundError("No module named 'burnish.new'")


def test_a_worker_that_does_not_understand_is_named_as_what_it_is(site, monkeypatch):
    measure = Workers(site.address, 1, seconds=0.002)
    submit = measure._client.submit
    monkeypatch.setattr(measure._client, "submit", lambda ask, *a, **how: submit(not_there, *a, **how))
    with pytest.raises(
        RunError, match=r"cannot do what it was asked to \(ModuleNotFound.*: install the same"
    ):
        list(measure([candidate(100)]))
    measure.close()
    monkeypatch.setattr(workers, "this_device", not_there)
    with pytest.raises(InputError, match=r"cannot say what it is \(ModuleNotFound.*: install the same"):
        Workers(site.address, 1)


def candidate(size):
    """With the default config."""
    return Candidate(double(size), Space.config(Space(double(size)).default()))


def server_of(worker):
    """The measuring process of a worker that has nothing to do."""
    (pid,) = (int(name) for name in os.listdir("/proc") if name.isdigit() and parent(name) == worker)
    return pid


def test_a_worker_whose_measuring_process_has_ended_is_not_asked_again(site):
    second = site.begin()
    measure = Workers(site.address, 1, seconds=0.002)
    candidates = [candidate(n) for n in (100, 101, 102)]
    os.kill(server_of(second), signal.SIGKILL)
    for _ in range(2):
        found = dict(measure(candidates))
        assert sorted(found) == [0, 1, 2] and not any(r.error for r in found.values())
    os.kill(server_of(site.pids[0]), signal.SIGKILL)
    with pytest.raises(RunError, match=r"no worker is left at .*: a measuring process has ended; start"):
        list(measure(candidates))
    measure.close()


def test_what_is_asked_of_workers_that_end_is_asked_of_one_that_joins(site, monkeypatch):
    second = site.begin()
    measure = Workers(site.address, 1, seconds=0.002)
    os.kill(server_of(site.pids[0]), signal.SIGKILL)
    assert len(dict(measure([candidate(n) for n in (100, 101, 102)]))) == 3
    submit, asked = measure._client.submit, []

    def ending(*args, **how):
        future = submit(*args, **how)
        asked.append(how["workers"])
        if second in site.pids:
            os.kill(second, signal.SIGKILL)
            os.waitpid(second, 0)
            site.pids.remove(second)
            site.begin()
        return future

    os.kill(second, signal.SIGSTOP)
    monkeypatch.setattr(measure._client, "submit", ending)
    assert dict(measure([candidate(103)]))[0].error is None
    assert [len(workers) for workers in asked] == [1, 1] and asked[0] != asked[1]
    measure.close()


def test_a_scheduler_that_ends(site):
    second = site.begin()
    measure = Workers(site.address, 1, seconds=0.02)
    ending = Thread(target=site.kill_when_it_has_measured, args=(site.pids[0],))
    ending.start()
    with pytest.raises(RunError, match=r"the scheduler at tcp://.* has ended, or cannot be reached"):
        list(measure([candidate(n) for n in range(100, 140)]))
    ending.join()
    assert second in site.pids
    measure.close()


def test_a_worker_of_another_kind_that_joins_late_is_not_asked(site, monkeypatch):
    measure = Workers(site.address, 1, seconds=0.002)
    monkeypatch.setattr(device, "made_by", lambda: "0123 1.2.3")
    site.begin()
    monkeypatch.undo()
    candidates = [candidate(n) for n in (100, 101, 102)]
    found = dict(measure(candidates))
    assert sorted(found) == [0, 1, 2] and not any(r.error for r in found.values())
    assert len(measure._addresses()) == 1 and "Burnish 0123 1.2.3" in str(measure._unable)
    measure.close()


def end_workers(request):
    raise workers.distributed().KilledWorker("task", SimpleNamespace(address="tcp://127.0.0.1:9"), 3)


def test_candidates_that_end_workers_are_measured_each_by_itself(site, monkeypatch):
    """The scheduler gives up on what has ended three workers."""
    measure = Workers(site.address, 1, seconds=0.002)
    submit, sizes = measure._client.submit, []

    def killing(ask, request, **how):
        sizes.append(len(request.candidates))
        bad = any(c.task.expr.params[0][1].shape == (101,) for c in request.candidates)
        return submit(end_workers if bad else ask, request, **how)

    monkeypatch.setattr(measure._client, "submit", killing)
    candidates = [candidate(n) for n in (100, 101, 102)]
    found = dict(measure(candidates))
    assert sizes == [3, 1, 1, 1] and [found[n].error for n in range(3)] == [None, "crash", None]
    measure.close()


def test_without_workers_it_ends(site, monkeypatch):
    measure = Workers(site.address, 1, seconds=0.002)
    monkeypatch.setattr(workers, "LONELY", 1.0)
    monkeypatch.setattr(measure, "_addresses", list)
    with pytest.raises(RunError, match="no worker with a device is left"):
        monkeypatch.setattr(measure._distributed, "wait", lambda *a: time.sleep(0.2) or raise_timeout())
        list(measure([candidate(100)]))
    measure.close()


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return int(f.read().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def raise_timeout():
    raise TimeoutError


def test_a_scheduler_that_is_not_there(monkeypatch):
    monkeypatch.setattr(workers, "CONNECT", 1.0)
    with pytest.raises(InputError, match=r"no dask scheduler at tcp://127\.0\.0\.1:9"):
        Workers("tcp://127.0.0.1:9", 1)
    with pytest.raises(InputError, match="no dask scheduler at"):
        serve("tcp://127.0.0.1:9")


def test_loopback_unless_told_otherwise():
    with pytest.raises(InputError, match="expected both on loopback, or neither"):
        serve("tcp://192.0.2.1:8786")
    with pytest.raises(InputError, match="expected both on loopback, or neither"):
        serve("tcp://127.0.0.1:8786", host="192.0.2.1")


@pytest.mark.parametrize("host", ["", "0", "nowhere"])
def test_hosts_that_are_no_address(host):
    """An empty one would be all addresses."""
    with pytest.raises(InputError, match="expected an IP address"):
        serve(None, host=host, port=0)


def test_dask_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ToolError, match=r"pip install 'burnish\[dist\]'"):
        Workers("tcp://127.0.0.1:8786", 1)


def test_a_worker_of_dask_alone_cannot_measure():
    with pytest.raises(InputError, match="start workers with `burnish worker`"):
        device.measure_on_worker(None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "expected the address of a scheduler, or --listen"),
        (("tcp://127.0.0.1:1", "--listen", "0"), "expected the address of a scheduler, or --listen"),
        (("--listen", "0", "--cores", "4095"), "--cores '4095': expected some of"),
        (("--listen", "0", "--cores", "1-"), "--cores '1-': expected"),
        (("tcp://192.0.2.1:8786",), "expected both on loopback"),
    ],
)
def test_the_command_refuses(given, says):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(InputError) as error:
            cli.main(["worker", *given], standalone_mode=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert says in str(error.value)


def test_the_command_ends_when_asked_to(tmp_path):
    told = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "burnish", "worker", "--listen", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=told) as worker:
        assert worker.stdout.readline().startswith("measuring for tcp://127.0.0.1:")
        worker.terminate()
        assert worker.wait() == 0
    assert not list(tmp_path.iterdir())


@contextmanager
def worker_command(folder, *options):
    """`burnish worker`, until it is asked to end; yields the address that it prints."""
    told = {**os.environ, "TMPDIR": str(folder), "BURNISH_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "burnish", "worker", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=told) as worker:
        try:
            yield worker.stdout.readline().removeprefix("measuring for ").strip()
        finally:
            worker.terminate()
            assert worker.wait(60) == 0


def test_a_network_is_tuned_by_two_workers_of_a_core_each(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    records = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "burnish", "tune", "digits", "--trials", "12", "--threads", "1"]
    with (
        worker_command(tmp_path, "--listen", "0", "--cores", cores[0]) as address,
        worker_command(tmp_path, address, "--cores", cores[-1]) as same,
    ):
        assert same == address and address.startswith("tcp://127.0.0.1:")
        command += ["--workers", address, "--records", records]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    measured = [r for r in Records(records, shipped=False) if not r.network]
    assert len(measured) >= 12 and all(r.seconds for r in measured if not r.error)
    assert len({r.task for r in measured}) > 3 and {r.threads for r in measured} == {1}
