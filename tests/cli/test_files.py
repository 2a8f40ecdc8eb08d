"""Files that commands write."""

from __future__ import annotations

import os
import threading

import pytest
from burnish.commands.files import write_file
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


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "page"
    write_file(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match=r"cannot write .*page: No space left"):
        write_file(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page"]
