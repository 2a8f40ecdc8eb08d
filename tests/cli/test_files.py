"""Files that commands write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from burnish.commands.files import check_folder, check_writable, write_file
from burnish.errors import InputError


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "table")
    reader.join(10)
    assert found == ["table"] and not pipe.is_file()


def test_devices_stay(tmp_path):
    link = tmp_path / "nothing"
    link.symlink_to("/dev/null")
    write_file(link, "table")
    assert link.is_symlink() and link.is_char_device()
    assert os.listdir(tmp_path) == ["nothing"]


def test_the_systems_own_names_are_not_replaced(tmp_path):
    for name in ("/dev/null", "/dev/stdout"):
        if not os.path.isfile(name):
            assert str(check_writable(Path(name))) == name
    with pytest.raises(InputError, match="cannot write /proc/self/comm"):
        write_file(Path("/proc/self/comm"), "table")
    for name in ("/dev/no-such-file", "/dev/../proc/self/x"):
        with pytest.raises(InputError, match="none of the user's files"):
            check_writable(Path(name))
    out = Path(f"/proc/self/fd/{os.open(tmp_path / 'out', os.O_CREAT | os.O_RDWR)}")
    with pytest.raises(InputError, match="stands for a file"):
        write_file(out, "table")
    os.close(int(out.name))


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "latest").symlink_to("there/page")
    write_file(check_writable(tmp_path / "latest"), "table")
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "there" / "page").read_text() == "table"
    assert os.listdir(tmp_path / "there") == ["page"]


def test_a_folder_may_hold_anything(tmp_path):
    (tmp_path / "output").mkdir()
    assert check_folder(tmp_path) == tmp_path and os.listdir(tmp_path) == ["output"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "page"
    write_file(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match=r"cannot write .*page: No space left"):
        write_file(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page"]


@pytest.mark.parametrize("name", ["n" * 250, "и" * 120])
def test_names_may_be_as_long_as_the_system_allows(tmp_path, name):
    write_file(check_writable(tmp_path / name), "table")
    assert os.listdir(tmp_path) == [name]


def test_names_that_are_no_text_are_written(tmp_path):
    write_file(tmp_path / "t.md", f"the model {os.fsdecode(b'm' + bytes([255]))}")
    assert (tmp_path / "t.md").read_bytes() == b"the model m?"
