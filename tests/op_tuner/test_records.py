"""Records survive whatever happens to the processes that write them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.target import get_target
from burnish.compiler.templates import naive
from burnish.errors import InputError
from burnish.op_tuner.costs import MeasuredCosts
from burnish.op_tuner.hardware import Hardware, this_hardware
from burnish.op_tuner.record import llvm_version, parse_record, version
from burnish.op_tuner.records import (
    RecordedConfig,
    Records,
    append,
    best_per_task,
    merge,
    read,
    vectors,
    vectors_of,
    work_of,
)

from .tasks import double, record

OTHER = Hardware("Other CPU", "znver1", ("avx2",), 8, 32768, 524288, 16 << 20)
SIBLING = replace(this_hardware(), cores=999)
OWN = {"burnish": version(), "llvm": llvm_version()}  # of records made with this compiler


def test_a_line_reads_back():
    for made in (
        record(),
        record(seconds=None, error="crash", detail="SIGSEGV\n\u2028"),
        record(hardware=OTHER),
    ):
        assert "\n" not in made.line
        assert parse_record(made.line, "here") == made


def test_append_and_read(tmp_path):
    path = tmp_path / "deep" / "r.jsonl"
    assert read(path) == ([], 0)
    append(path, [record(), record(runs=11)])
    append(path, [record(runs=12)])
    found, end = read(path)
    assert [r.runs for r in found] == [10, 11, 12] and end == path.stat().st_size
    append(path, [record(runs=13)])
    assert [r.runs for r in read(path, end)[0]] == [13]


def test_zeros_that_a_stopped_machine_left_are_skipped(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [record(runs=1)])
    with path.open("a") as f:
        f.write("\0" * 512 + record(runs=2).line[90:] + "\n")
    append(path, [record(runs=3)])
    assert [r.runs for r in read(path)[0]] == [1, 3]


def test_a_file_that_was_begun_anew_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [record(runs=n) for n in (1, 2, 3)])
    known = Records(path, shipped=False)
    path.unlink()
    known.add(record(runs=4))
    assert [r.runs for r in known] == [1, 2, 3, 4]
    path.unlink()
    known.refresh()
    known.add(record(runs=5))
    assert [r.runs for r in known] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kept", [1, 8, 40, -1])
def test_a_torn_line_is_skipped_and_the_next_record_is_whole(tmp_path, kept):
    path = tmp_path / "r.jsonl"
    append(path, [record(runs=1)])
    with path.open("a") as f:
        f.write(record(runs=2).line[:kept])
    assert [r.runs for r in read(path)[0]] == [1]
    append(path, [record(runs=3)])
    assert [r.runs for r in read(path)[0]] == [1, 3]


def changed(**fields):
    return json.dumps({**json.loads(record().line), **fields})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hello", "expected a record"),
        ("[1]", "expected a record"),
        ('{"a": 1}', "expected a record"),
        (changed(format=3), "format 3; this Burnish reads format 2"),
        (changed(evict="all"), "evict is no whole number"),
        (changed(seconds="fast"), "seconds are 'fast'"),
        (changed(seconds=None), "either seconds or an error"),
        (changed(hardware={}), "has no field 'isa'"),
        (changed(config=[1]), "of the wrong kind"),
        (changed(config={"lanes": float("nan")}), "the answer to lanes is nan"),
        (changed(task=7), "task is no text"),
        ('{"format": 1}', "has no field"),
    ],
)
def test_what_is_no_record_is_an_error_that_names_the_line(tmp_path, line, says):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{record().line}\n\n{line}\n")
    with pytest.raises(InputError, match=r"r\.jsonl, line 3: ") as caught:
        read(path)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_read_ends_no_tuning_that_is_under_way(tmp_path):
    """A newer version may write to the same file."""
    path = tmp_path / "r.jsonl"
    known = Records(path, shipped=False)
    for _ in range(2):
        with path.open("a") as file:
            file.write(changed(format=3) + "\n")
        known.add(record())
    assert len(known) == 2
    with pytest.raises(InputError, match="format 3"):
        Records(path, shipped=False)


@pytest.mark.parametrize(("cold", "evict"), [(True, 64 << 20), (False, 0)])
def test_records_of_the_first_format_are_read(tmp_path, cold, evict):
    data = json.loads(changed(format=1, cold=cold))
    del data["evict"]
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(data) + "\n")
    assert read(path)[0] == [replace(record(), evict=evict)]


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write records"):
        append(tmp_path, [record()])
    with pytest.raises(InputError, match="cannot read records"):
        read(tmp_path)


@pytest.fixture
def lanes(monkeypatch):
    """The naive template asks for them."""
    monkeypatch.setattr(naive, "params", lambda task, cfg: cfg.choose("lanes", (1, 2, 4, 8, 16), 1))


def test_best_nearest_and_the_config_to_take(tmp_path, lanes):
    task = double()
    mine = [
        record(task=task.digest, seconds=s, config={"lanes": n}, **OWN)
        for n, s in ((1, 3.0), (4, 1.0), (8, 2.0))
    ]
    failed = record(task=task.digest, seconds=None, error="wrong", config={"lanes": 2}, **OWN)
    near = record(task=task.digest, seconds=0.5, hardware=SIBLING, config={"lanes": 16})
    far = record(task=task.digest, seconds=0.1, hardware=OTHER, config={"lanes": 2})
    records = Records(tmp_path / "r.jsonl", shipped=False)
    assert records.best(task) is None and type(records.pick_config(task)) is DefaultConfig
    records.add(far, near)
    assert records.best(task) is None and records.nearest(task) == near
    assert records.pick_config(task).choose("lanes", (1, 16), 1) == 16
    records.add(*mine, failed, record())
    assert records.pick_config(task).choose("lanes", (1, 16), 1) == 16, "stands until it is tried here"
    records.add(replace(near, hardware=this_hardware(), seconds=2.0, **OWN))
    assert records.best(task) == mine[1] and records.best(task, evict=0) is None
    config = records.pick_config(task)
    assert config.choose("lanes", (1, 4), 1) == 4 and config.choose("lanes", (1, 2), 2) == 2
    assert len(records) == 8 and len(records.of(task)) == 7
    assert [r.seconds for r in best_per_task(records.of(task))] == [0.1, 0.5, 1.0]


def test_a_cpu_helps_another_whose_vectors_are_as_wide(tmp_path, lanes):
    task = replace(double(), target=replace(get_target("x86-64-v3"), cpu="haswell"))
    there = replace(task, target=replace(task.target, name="host", cpu="znver3"))
    wide = replace(OTHER, cpu="Wide CPU", isa=("avx2", "avx512f"))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    made = record(
        task=there.digest, key=there.key, target="host/znver3", hardware=OTHER, config={"lanes": 16}
    )
    records.add(replace(made, hardware=wide, seconds=1e-9, config={"lanes": 8}))
    assert task.digest != there.digest and records.nearest(task) is None
    records.add(made, record(key="short"))
    assert records.nearest(task) == made and not records.of(task)
    config = records.pick_config(task)
    assert config.choose("lanes", (1, 16), 1) == 16 and config.origin == "Other CPU, znver1, 8 cores"
    other_work = replace(task, threads=2)
    assert type(records.pick_config(other_work)) is DefaultConfig
    own = record(task=task.digest, key=task.key, target="x86-64-v3/haswell", config={"lanes": 4}, **OWN)
    records.add(own, replace(own, config={"lanes": 16}, seconds=None, error="wrong"))
    config = records.pick_config(task)
    assert config.choose("lanes", (4, 16), 16) == 4 and config.origin == ""


def test_what_others_found_stands_until_it_is_tried_here(tmp_path, lanes):
    """An interrupted tuning that got no further than default configs leaves a network as fast as it was."""
    task = double()
    records = Records(tmp_path / "r.jsonl", shipped=False)
    made = record(task=task.digest, key=task.key, seconds=1e-3)
    records.add(replace(made, hardware=SIBLING, config={"lanes": 8}))
    records.add(replace(made, seconds=2e-3, config={"lanes": 16}))
    assert records.pick_config(task).answers == {"lanes": 16}, "of this machine, though slower"
    made = replace(made, **OWN)
    records.add(replace(made, seconds=3e-3, config={"lanes": 1}))
    assert records.pick_config(task).answers == {"lanes": 16}
    records.add(replace(made, seconds=None, error="crash", config={"lanes": 2}))
    assert records.pick_config(task).answers == {"lanes": 16}
    assert records.told(task, this_hardware()).answers == {"lanes": 16}
    records.add(replace(made, seconds=5e-3, config={"lanes": 16}))
    assert records.pick_config(task).answers == {"lanes": 1}, "was tried, and is slower"
    assert records.told(task, this_hardware()).answers == {"lanes": 16}


def test_what_a_network_here_has_compared_stands_until_the_next_tuning(tmp_path, lanes):
    task = double()
    records = Records(tmp_path / "r.jsonl", shipped=False)
    made = record(task=task.digest, key=task.key, **OWN)
    times = [replace(made, seconds=s, config={"lanes": n}) for n, s in ((1, 3e-3), (4, 2e-3))]
    records.add(*times, replace(times[1], network="net", against=3e-3))
    records.add(replace(made, hardware=SIBLING, seconds=1e-3, config={"lanes": 8}))
    assert records.pick_config(task).answers == {"lanes": 4}
    assert records.told(task, this_hardware()).answers == {"lanes": 8}


def test_what_a_network_refuted_elsewhere_is_not_taken_for_another_cpu_either(tmp_path, lanes):
    task = double()
    there = replace(task, target=replace(task.target, cpu="sibling"))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    made = record(task=there.digest, key=there.key, hardware=SIBLING)
    records.add(*(replace(made, seconds=s, config={"lanes": n}) for n, s in ((8, 1e-3), (4, 2e-3))))
    assert records.pick_config(task).answers == {"lanes": 8}
    records.add(replace(made, seconds=None, error="crash", config={"lanes": 8}, network="net"))
    assert records.pick_config(task).answers == {"lanes": 4}


@pytest.mark.parametrize(("error", "taken"), [("wrong", 4), ("run", 4), ("timeout", 8)])
def test_a_config_that_was_wrong_once_is_not_taken(tmp_path, lanes, error, taken):
    task = double()
    records = Records(tmp_path / "r.jsonl", shipped=False)
    made = record(task=task.digest, key=task.key, **OWN)
    records.add(
        *(replace(made, seconds=s, config={"lanes": n}) for n, s in ((1, 3e-3), (4, 2e-3), (8, 1e-3)))
    )
    inside = replace(made, seconds=0.7e-3, against=1e-3, network="net", config={"lanes": 8})
    records.add(replace(made, seconds=None, error=error, config={"lanes": 8}))
    assert records.pick_config(task).answers == {"lanes": taken}
    older = Records(tmp_path / "older.jsonl", shipped=False)
    older.add(*(replace(r, burnish="0") for r in (*records, inside)))
    assert older.told(task, this_hardware()).answers == older.pick_config(task).answers == {"lanes": taken}
    records.add(inside)
    assert records.pick_config(task).answers == {"lanes": taken}
    costs = MeasuredCosts(records, task.target, 1, measure=False, evict=made.evict)
    assert costs(task).seconds == pytest.approx({4: 2e-3, 8: 0.7 * 3e-3}[taken])
    found = best_per_task([*records, *records.in_networks(task)])
    assert [r.config for r in found] == [{"lanes": taken}]


def test_gpus_of_another_language_are_no_help():
    """The words of a device's name are none of its work's."""
    keys = [f"y tiles {target} threads=1\nparam x" for target in ("opencl/Mali-G76 r0p0", "cuda-sm90/sm_90")]
    assert work_of(keys[0]) == work_of(keys[1]) == "y tiles threads=1\nparam x"
    opencl, cuda, amd = (vectors(record(target=t)) for t in ("opencl/x y", "cuda-sm90/sm_90", "amd-rdna3/z"))
    assert opencl == amd == vectors_of(get_target("mali-g76")) != cuda


def test_where_all_failed_here_others_stand(tmp_path, lanes):
    task = double()
    there = replace(task, target=replace(task.target, cpu="sibling"))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    failed = record(task=task.digest, key=task.key, seconds=None, error="wrong", config={"lanes": 4}, **OWN)
    records.add(failed, record(task=there.digest, key=there.key, hardware=SIBLING, config={"lanes": 8}))
    assert records.pick_config(task).answers == {"lanes": 8}
    records.add(replace(failed, config={"lanes": 8}))
    assert type(records.pick_config(task)) is DefaultConfig


def test_where_the_rule_differs_between_machines_it_is_taken(tmp_path, monkeypatch, lanes):
    """What was best with smaller caches is no help where the template itself would do otherwise."""
    task = double()
    records = Records(tmp_path / "r.jsonl", shipped=False)
    other = replace(OTHER, isa=this_hardware().isa, l2=task.target.l2 // 2)
    records.add(record(task=task.digest, key=task.key, hardware=other, config={"lanes": 16}))
    assert isinstance(records.pick_config(task), RecordedConfig)

    class Rule:
        def params(self, task, cfg):
            cfg.choose("lanes", (1, 16), 16 if task.target.l2 == other.l2 else 1)

    monkeypatch.setattr("burnish.op_tuner.records.template", lambda task: Rule())
    assert type(records.pick_config(task)) is DefaultConfig
    own = replace(other, l2=task.target.l2, cores=999)
    records.add(record(task=task.digest, key=task.key, hardware=own, config={"lanes": 16}))
    assert isinstance(records.pick_config(task), RecordedConfig)


def test_configs_for_other_vectors_are_not_taken_though_the_cpu_has_the_same_name(tmp_path, lanes):
    """A hypervisor may hide half of a CPU's vectors."""
    narrow = replace(get_target("x86-64-v3"), name="host", cpu="znver5")
    task = replace(double(), target=narrow)
    hardware = replace(OTHER, core="znver5", isa=("avx2", "avx512f"))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    records.add(record(task=task.digest, key=task.key, target="host/znver5", hardware=hardware))
    assert type(records.pick_config(task)) is DefaultConfig
    records.add(record(task=task.digest, key=task.key, target="host/znver5", hardware=OTHER))
    assert records.pick_config(task).choose("lanes", (1, 16), 1) == 16


def test_a_network_has_the_configs_that_were_measured_as_in_it(tmp_path, lanes):
    task = double()
    own = [record(task=task.digest, evict=0, seconds=1.0 + n, config={"lanes": n}) for n in (2, 4)]
    more = [record(task=task.digest, evict=1 << 20, seconds=9.0 - n, config={"lanes": n}) for n in (2, 4, 8)]
    records = Records(tmp_path / "r.jsonl", shipped=False)
    records.add(*own, *more)
    picked = [
        records.pick_config(task, evict).choose("lanes", (2, 4, 8), 1) for evict in (0, 1 << 20, 5, None)
    ]
    assert picked == [2, 8, 8, 8]


def test_of_a_target_that_this_machine_cannot_be_the_records_of_another_count(tmp_path):
    task = replace(double(), target=get_target("cortex-a53"))
    board = replace(OTHER, cpu="board", isa=("neon",))
    records = Records(tmp_path / "r.jsonl", shipped=False)
    assert records.hardware_for(task.target) == this_hardware() == records.hardware_for(double().target)
    records.add(
        record(task=task.digest, key=task.key, target="cortex-a53/cortex-a53", hardware=board, evict=0)
    )
    assert records.hardware_for(task.target) == board
    assert records.hardware_for(double().target) == this_hardware()
    cost = MeasuredCosts(records, task.target, 1, measure=False)(task)
    assert (cost.seconds, cost.source) == (1e-3, "record")


def test_the_best_is_the_fastest_of_what_was_confirmed():
    """One config was lucky, once; another is fast each time."""
    often = [record(seconds=s, config={"lanes": 4}) for s in (2.0, 1.5, 3.0)]
    assert best_per_task([record(seconds=1.0), *often, record(seconds=2.5, config={"lanes": 2})]) == often[:1]
    assert best_per_task([record(seconds=1.0), *often[:2]]) == [record(seconds=1.0)]
    failed = record(seconds=None, error="wrong")
    assert best_per_task([failed]) == []


def test_few_runs_that_differ_decide_nothing_where_others_do_not():
    """A moment in which the machine stood still makes any time of three runs."""
    odd = record(seconds=1.0, spread=0.6, runs=3)
    sure = record(seconds=3.0, spread=0.6, runs=400)
    slow = record(seconds=2.0, config={"lanes": 2})
    assert not odd.sure and sure.sure and slow.sure
    assert best_per_task([odd, slow]) == [slow] and best_per_task([odd]) == [odd]
    assert best_per_task([odd, odd, sure, slow]) == [slow], "its own time is the sure one"
    assert best_per_task([odd, replace(sure, seconds=1.5), slow])[0].seconds == 1.5


@dataclass(frozen=True)
class Option:
    lanes: int
    order: tuple[str, ...]


def test_answers_that_are_objects(tmp_path):
    options = [Option(4, ("a",)), Option(np.int64(8), ("a", "b"))]
    made = record(config={"plan": options[1], "n": np.float32(0.5), "on": True})
    append(tmp_path / "r.jsonl", [made])
    (found,), _ = read(tmp_path / "r.jsonl")
    assert found.config == {"plan": (8, ("a", "b")), "n": 0.5, "on": True}
    assert RecordedConfig(found.config).choose("plan", options, options[0]) is options[1]


def test_a_recorded_config_that_the_template_rejects_is_not_taken(tmp_path, monkeypatch):
    task = double()
    records = Records(tmp_path / "r.jsonl", shipped=False)
    records.add(record(task=task.digest, config={"lanes": 4}))
    assert records.pick_config(task).choose("lanes", (1, 4), 1) == 4

    def rejects(task, cfg):
        cfg.require(cfg.choose("lanes", (1, 4), 1) == 1)

    monkeypatch.setattr(naive, "params", rejects)
    assert type(records.pick_config(task)) is DefaultConfig


def test_behind_what_another_process_tears_meanwhile_a_record_is_written_again(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    append(path, [record(runs=1)])
    write = os.write

    def torn(handle, data):
        monkeypatch.setattr(os, "write", write)
        with path.open("ab") as other:
            other.write(record(runs=2).line.encode()[:40])
        return write(handle, data)

    monkeypatch.setattr(os, "write", torn)
    append(path, [record(runs=3), record(runs=4)])
    assert sorted(r.runs for r in read(path)[0]) == [1, 3, 4]


def test_two_that_append_see_each_other(tmp_path):
    one, two = (Records(tmp_path / "r.jsonl", shipped=False) for _ in range(2))
    one.add(record(runs=1))
    two.add(record(runs=2))
    one.refresh()
    assert sorted(r.runs for r in one) == sorted(r.runs for r in two) == [1, 2]


def test_merge_takes_each_record_once(tmp_path):
    a, b, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "out.jsonl"
    append(a, [record(runs=1), record(runs=2)])
    append(b, [record(runs=2), record(runs=3)])
    assert merge(out, [a, b]) == 3 and merge(out, [a, b]) == 0
    assert [r.runs for r in read(out)[0]] == [1, 2, 3]
    with pytest.raises(InputError, match="there is no file"):
        merge(out, [tmp_path / "none.jsonl"])


def test_what_is_no_file_of_records_stays_as_it_is(tmp_path):
    path = tmp_path / "module.so"
    path.write_bytes(b"\x7fELF and no end of a line")
    append(tmp_path / "r.jsonl", [record()])
    with pytest.raises(InputError, match="expected a record"):
        merge(path, [tmp_path / "r.jsonl"])
    assert path.read_bytes() == b"\x7fELF and no end of a line"


def test_the_last_line_of_a_whole_file_needs_no_end(tmp_path):
    a, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    a.write_text(record(runs=1).line + "\n" + record(runs=2).line)
    assert [r.runs for r in read(a)[0]] == [1]  # somebody may be writing the other
    assert [r.runs for r in read(a, whole=True)[0]] == [1, 2]
    assert merge(out, [a]) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", {"a": {"b": 1}}),
        ("config", {"a": None}),
        ("seconds", 10**400),
        ("seconds", True),
        ("spread", float("nan")),
        ("spread", "x"),
        ("runs", -1),
        ("threads", True),
        ("evict", 1 << 80),
        ("key", "\ud800"),
    ],
)
def test_fields_that_are_not_what_they_should_be(tmp_path, field, value):
    data = {**json.loads(record().line), field: value}
    (tmp_path / "r.jsonl").write_text(json.dumps(data) + "\n")
    with pytest.raises(InputError, match=r"r.jsonl, line 1: a field of the record is of the wrong kind"):
        read(tmp_path / "r.jsonl")


def test_lists_within_lists(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"format": 2, "config": ' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"r.jsonl, line 1: expected a record"):
        read(tmp_path / "r.jsonl")


BEGUN = b"begun"


def test_killed_at_200_random_moments_nothing_acknowledged_is_lost(tmp_path):
    path = tmp_path / "r.jsonl"
    chance = random.Random(5)
    base = record(key="long " * 400)
    acknowledged: set[int] = set()
    found: set[int] = set()
    at = 0
    for turn in range(200):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writing, BEGUN)
                for n in range(turn * 100_000, (turn + 1) * 100_000):
                    append(path, [replace(base, runs=n)])
                    os.write(writing, n.to_bytes(8, "little"))
            finally:
                os._exit(1)
        os.close(writing)
        assert os.read(reading, len(BEGUN)) == BEGUN  # however long a fork takes on a busy machine
        time.sleep(chance.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(reading, "rb") as stream:
            told = stream.read()
        acknowledged |= {int.from_bytes(told[i : i + 8], "little") for i in range(0, len(told) // 8 * 8, 8)}
        records, at = read(path, at)
        found |= {r.runs for r in records}
        assert acknowledged <= found
    assert len(acknowledged) > 200  # in most turns more than one
    assert {r.runs for r in read(path)[0]} == found
