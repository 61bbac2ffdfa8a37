import os
import subprocess
import sys
import tempfile

import pytest

from modelserver.run.pidfile import is_alive, own_pid_file, pid_file, read_pid, running_server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pid"


@pytest.mark.parametrize(
    ("content", "pid"),
    [("123", 123), (" 123\n", 123), ("", None), ("many", None), ("\udcff", None), ("-1", None), ("0", None)],
)
def test_a_pid_is_read(content, pid, path):
    path.write_bytes(content.encode("utf-8", "surrogateescape"))

    assert read_pid(path) == pid


def test_missing_file_has_no_pid(tmp_path):
    assert read_pid(tmp_path / "none") is None
    assert read_pid(tmp_path) is None


def test_file_is_written_in_one_step(tmp_path, path):
    """The number is written without a newline, over what was there, and nothing else is left."""
    path.write_text("999999")
    with own_pid_file(path):
        assert path.read_text() == str(os.getpid())
        assert list(tmp_path.iterdir()) == [path]
        assert running_server(path) == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_file_of_a_killed_server_is_replaced(tmp_path, path):
    """In a container the next server has the number of the killed one: what that left is taken over, what it
    left half done too.
    """
    path.write_text(str(os.getpid()))
    os.link(path, tmp_path / f"pid.{os.getpid()}")

    assert running_server(path) is None
    with own_pid_file(path):
        assert running_server(path) == os.getpid()
        assert list(tmp_path.iterdir()) == [path]


def test_file_of_a_live_server_stays(tmp_path, path):
    with own_pid_file(path):
        with pytest.raises(FileExistsError), own_pid_file(path):
            pass
        assert running_server(path) == os.getpid()
        assert list(tmp_path.iterdir()) == [path]


def test_a_killed_server_is_not_running(path):
    script = (
        "import sys, time; from pathlib import Path; from modelserver.run.pidfile import own_pid_file\n"
        "with own_pid_file(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    server = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    with server.stdout:
        server.stdout.readline()
        assert running_server(path) == server.pid
        server.kill()
        server.wait()
    assert read_pid(path) == server.pid
    assert running_server(path) is None


def test_what_another_wrote_stays(path):
    with own_pid_file(path):
        path.unlink()
        path.write_text("1")
    assert path.read_text() == "1"


def test_file_is_in_the_temporary_directory(monkeypatch, tmp_path):
    """The file lies in the temporary directory under TorchServe's name (reference 2.1)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert pid_file() == tmp_path / ".model_server.pid"


def test_ended_process_is_not_alive():
    """A process that has ended is not, even if nobody has asked for its status."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert is_alive(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid)
    process.wait()
    assert not is_alive(process.pid)
    assert not is_alive(2**80)
