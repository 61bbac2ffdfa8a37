import os
import signal
import subprocess
import sys
import tempfile

import pytest

from modelserver import __version__
from modelserver.__main__ import main
from modelserver.run import start_stop
from modelserver.run.pidfile import own_pid_file


@pytest.fixture(autouse=True)
def temp(tmp_path, monkeypatch):
    """A temporary directory of one's own, without variables that steer the server."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("TS_CONFIG_FILE", "TEMP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [["--start", "--stop"], ["--version", "--start"], ["--models"], ["--nonsense"]]
)
def test_invalid_flags_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: modelserver" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_is_printed(flag, capsys):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"modelserver Version is {__version__}\n"


def test_running_server_stops_the_start(temp, capsys):
    with own_pid_file(temp / ".model_server.pid"):
        assert main(["--model-store", "."]) == 1
        assert (temp / ".model_server.pid").exists()
    assert capsys.readouterr().out.startswith("modelserver is already running, please use modelserver --stop")


def test_stale_pid_file_is_removed(temp, monkeypatch, capsys):
    (temp / ".model_server.pid").write_text("999999999")
    monkeypatch.setattr(start_stop, "start_detached", lambda values, *, wait: 0)

    assert main(["--model-store", "."]) == 0
    assert capsys.readouterr().out == "Removing orphan pid file.\n"
    assert not (temp / ".model_server.pid").exists()


def test_stop_without_a_server_succeeds(temp, capsys):
    (temp / ".model_server.pid").write_text("999999999")

    assert main(["--stop"]) == 0
    assert capsys.readouterr().out == "modelserver is not currently running.\n"
    assert list(temp.iterdir()) == []


class Running:
    """A server that ends some polls after it was stopped."""

    def __init__(self, temp, monkeypatch, error=None):
        (temp / ".model_server.pid").write_text("4242")
        self.looks = 3
        self.signals = []
        self.error = error
        monkeypatch.setattr(start_stop, "running_server", lambda _: 4242)
        monkeypatch.setattr(start_stop, "is_alive", self.is_alive)
        monkeypatch.setattr(os, "kill", self.kill)

    def is_alive(self, pid):
        self.looks -= 1
        return self.looks > 0

    def kill(self, pid, number):
        if self.error is not None:
            raise self.error
        self.signals.append((pid, number))


@pytest.mark.parametrize(("flags", "printed"), [([], "modelserver has stopped.\n"), (["--foreground"], "")])
def test_stop_sends_sigterm_and_waits(temp, monkeypatch, capsys, flags, printed):
    """--stop sends SIGTERM and waits; the pid file and an old key file are removed (reference 2.2)."""
    running = Running(temp, monkeypatch)
    (temp / "key_file.json").touch()

    assert main(["--stop", *flags]) == 0
    assert capsys.readouterr().out == printed
    assert running.signals == [(4242, signal.SIGTERM)]
    assert list(temp.iterdir()) == []


def test_stop_that_takes_too_long(temp, monkeypatch, capsys):
    Running(temp, monkeypatch).looks = 10**9
    monkeypatch.setattr(start_stop, "STOP_TIMEOUT", 0.0)

    assert main(["--stop", "--foreground"]) == 0
    assert capsys.readouterr().out == "Stopping modelserver took too long.\n"


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ProcessLookupError, 0, "modelserver already stopped."),
        (PermissionError, 1, "belongs to another user"),
    ],
)
def test_stop_that_cannot(temp, monkeypatch, capsys, error, code, printed):
    Running(temp, monkeypatch, error)

    assert main(["--stop"]) == code
    assert printed in capsys.readouterr().out


def test_help_names_every_flag_of_torchserve():
    printed = start_stop.build_parser().format_help()
    flags = (
        "-v --version --start --stop --ts-config --model-store --workflow-store --models --log-config"
        " --cpp-log-config --foreground --no-config-snapshots --ncs --plugins-path --ppath"
        " --disable-token-auth --dt --enable-model-api"
    )
    assert [flag for flag in flags.split() if flag not in printed] == []
    assert "without effect" in printed


def test_outcome_is_the_last_line():
    """The outcome is the last line that is no progress; without any there is none."""
    assert start_stop.follow(["progress a\n", "started\n"]) == "started"
    assert start_stop.follow(["progress a\n"]) is None
    assert start_stop.follow([]) is None


@pytest.fixture
def child(monkeypatch):
    """``start_detached`` starts a script instead of the server; the last argument is the pipe's number."""
    real = subprocess.Popen
    started = []

    def play(script):
        def popen(command, **arguments):
            assert command[1:3] == ["-m", "modelserver"]
            assert arguments["start_new_session"]
            started.append(real([sys.executable, "-c", script, *command[3:]], **arguments))
            return started[-1]

        monkeypatch.setattr(start_stop.subprocess, "Popen", popen)
        return started

    yield play
    for process in started:
        process.kill()
        os.waitpid(process.pid, 0) if process.returncode == 0 and process.poll() is None else process.wait()


def test_a_detached_server_is_started(child, capsys):
    started = child(
        "import os, sys, time; pipe = int(sys.argv[-1]); "
        "os.write(pipe, b'started\\n'); os.close(pipe); time.sleep(60)"
    )

    assert start_stop.start_detached(["--start"]) == 0
    assert capsys.readouterr().out == f"{start_stop.STARTED_LINE}\n"
    os.kill(started[0].pid, 0)


@pytest.mark.parametrize(
    ("script", "status", "printed"),
    [
        ("import os, sys; os.write(int(sys.argv[-1]), b'failed in use\\n'); sys.exit(1)", 1, "in use\n"),
        ("import sys; sys.exit(7)", 7, "before it listened"),
        ("pass", 1, "before it listened"),
    ],
)
def test_a_start_that_fails_or_says_nothing_is_reported(child, capsys, script, status, printed):
    """A server that ends without a word is reported with its status, and never as a success."""
    child(script)

    assert start_stop.start_detached(["--start"]) == status
    out = capsys.readouterr().out
    assert out == printed if printed.endswith("\n") else printed in out


def test_a_server_started_as_torchserve_can_be_recognized(monkeypatch):
    """SageMaker's toolkit looks for a process that has TorchServe's Java class among its arguments."""
    monkeypatch.delenv("MODELSERVER_STARTED_AS", raising=False)
    assert start_stop.known_as() == []
    monkeypatch.setenv("MODELSERVER_STARTED_AS", "torchserve")
    arguments = start_stop.known_as()
    assert "org.pytorch.serve.ModelServer" in arguments
    assert start_stop.build_parser().parse_args(arguments).known_as == "org.pytorch.serve.ModelServer"
