from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from modelserver.pidfile import is_server, pid_file, read_pid, remove_own, write_pid

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "pid"),
    [("123", 123), (" 123\n", 123), ("", None), ("many", None), ("\udcff", None), ("-1", None), ("0", None)],
)
def test_read(tmp_path: Path, content: str, pid: int | None) -> None:
    """A pid file holds a number; anything else counts as no pid file."""
    path = tmp_path / "pid"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))

    assert read_pid(path) == pid


def test_absent(tmp_path: Path) -> None:
    """Where there is no file there is no pid."""
    assert read_pid(tmp_path / "none") is None
    assert read_pid(tmp_path) is None


def test_write(tmp_path: Path) -> None:
    """The number is written without a newline, over what was there, and nothing else is left."""
    path = tmp_path / "pid"
    path.write_text("999999")
    write_pid(path)

    assert path.read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == [path]


def test_remove_own(tmp_path: Path) -> None:
    """Only the file that names this process is removed."""
    path = tmp_path / "pid"
    path.write_text("1")
    remove_own(path)
    assert path.exists()

    write_pid(path)
    remove_own(path)
    remove_own(path)
    assert not path.exists()


def test_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file lies in the temporary directory under TorchServe's name (reference 2.1)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert pid_file() == tmp_path / ".model_server.pid"


def test_is_server() -> None:
    """A process counts as a server by its command line: an argument whose file name is modelserver."""
    waiting = "import time; time.sleep(60)"
    server = subprocess.Popen([sys.executable, "-c", waiting, "/usr/bin/modelserver"])
    other = subprocess.Popen([sys.executable, "-c", waiting, "/home/modelserver/config.properties"])
    try:
        assert is_server(server.pid)
        assert not is_server(other.pid)
    finally:
        for process in (server, other):
            process.kill()
            process.wait()
    assert not is_server(server.pid)


def test_nobody() -> None:
    """A number that no process has is no server."""
    assert not is_server(2**22 + 1)
    assert not is_server(2**80)
