"""The records that ship: whole, in the file of their vectors, and still answers to templates' questions."""

from __future__ import annotations

import pytest
from burnish.compiler.target import get_target
from burnish.models import zoo
from burnish.op_tuner.records import SHIPPED, RecordedConfig, Records, read, vectors, vectors_of
from burnish.op_tuner.space import Space
from burnish.workloads import distinct, planned

FILES = sorted(SHIPPED.glob("*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_is_of_its_files_vectors_and_the_best_of_its_task(file):
    target = get_target(file.stem)
    found, end = read(file)
    assert found and end == file.stat().st_size < 2 << 20
    assert {vectors(r) for r in found} == {vectors_of(target)}
    assert all(r.seconds and not r.network for r in found)
    kinds = [(r.task, r.hardware, r.evict) for r in found]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_network_of_the_zoo_is_compiled_by_them(file, tmp_path):
    target, records = get_target(file.stem), Records(tmp_path / "none.jsonl")
    tasks = [w.task for w in distinct(planned("mobilenet_v2", zoo.build("mobilenet_v2"), target, 1))]
    picked = [(task, records.pick_config(task)) for task in tasks]
    answers = [(task, c.answers) for task, c in picked if isinstance(c, RecordedConfig)]
    assert len(answers) > len(tasks) / 2
    assert all(Space(task).point(given) is not None for task, given in answers)
