import os
import subprocess
import sys

import pytest

from modelserver.run import daemon
from modelserver.run.cli import build_parser
from modelserver.run.daemon import STARTED_LINE, Readiness, follow


def test_outcome_is_printed_in_the_foreground(capsys):
    readiness = Readiness(None)
    readiness.progress("Loading")
    readiness.started()
    code = Readiness(None).failed("no store")

    assert capsys.readouterr().out == f"{STARTED_LINE}\nno store\n"
    assert code == 1


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines:
        yield lines, writing


def test_readiness_is_reported_in_lines(pipe, monkeypatch):
    detached = []
    monkeypatch.setattr(daemon, "detach_output", lambda: detached.append(True))
    lines, writing = pipe
    readiness = Readiness(writing)
    readiness.progress("Loading a\nb")
    readiness.started()

    assert lines.read() == "progress Loading a b\nstarted\n"
    assert detached == [True]


def test_failure_is_reported_once(pipe):
    """In one line; workers do not get the pipe, and a command that was interrupted is no reason to fail."""
    lines, writing = pipe
    os.set_inheritable(writing, True)
    readiness = Readiness(writing)

    assert not os.get_inheritable(writing)
    assert readiness.failed("two\nlines") == 1
    assert lines.read() == "failed two lines\n"

    reading, writing = os.pipe()
    os.close(reading)
    assert Readiness(writing).failed("nobody listens") == 1


def test_outcome_is_the_last_line():
    """The outcome is the last line that is no progress; without any there is none."""
    assert follow(["progress a\n", "started\n"]) == "started"
    assert follow(["progress a\n"]) is None
    assert follow([]) is None


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

        monkeypatch.setattr(daemon.subprocess, "Popen", popen)
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

    assert daemon.start_detached(["--start"]) == 0
    assert capsys.readouterr().out == f"{STARTED_LINE}\n"
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

    assert daemon.start_detached(["--start"]) == status
    out = capsys.readouterr().out
    assert out == printed if printed.endswith("\n") else printed in out


def test_a_server_started_as_torchserve_can_be_recognized(monkeypatch):
    """SageMaker's toolkit looks for a process that has TorchServe's Java class among its arguments."""
    monkeypatch.delenv("MODELSERVER_STARTED_AS", raising=False)
    assert daemon.known_as() == []
    monkeypatch.setenv("MODELSERVER_STARTED_AS", "torchserve")
    assert "org.pytorch.serve.ModelServer" in daemon.known_as()
    assert build_parser().parse_args(daemon.known_as()).known_as == "org.pytorch.serve.ModelServer"
