import fcntl
import os
import stat
from unittest.mock import Mock

import pytest

from modelserver.engine.file_locks import open_locked, replace_file


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_replaced(tmp_path, synced):
    """Whole; the mode is that of the new one, and others cannot write it even where everything is allowed."""
    path = tmp_path / "file"
    path.write_text("before")
    before = os.umask(0)
    replace_file(tmp_path / "usual", b"")
    os.umask(before)
    assert (tmp_path / "usual").stat().st_mode & 0o777 == 0o644
    (tmp_path / "usual").unlink()
    replace_file(path, b"after", mode=0o600, synced=synced)

    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_of_a_failure(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"after", synced=True)

    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_folders_that_cannot_be_synced(tmp_path, monkeypatch):
    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse_folders)
    replace_file(tmp_path / "file", b"after", synced=True)

    assert (tmp_path / "file").read_bytes() == b"after"


def test_a_lock_is_taken_once(tmp_path):
    path = tmp_path / "lock"
    assert open_locked(path, os.O_RDWR, fcntl.LOCK_EX) is None
    first = open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
    assert first is not None
    assert open_locked(path, os.O_RDWR, fcntl.LOCK_EX) is None
    os.close(first)
    again = open_locked(path, os.O_RDWR, fcntl.LOCK_EX)
    assert again is not None
    os.close(again)
