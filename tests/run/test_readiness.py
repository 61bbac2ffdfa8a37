import os

import pytest

from modelserver.run.readiness import STARTED_LINE, Readiness


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
    monkeypatch.setattr("modelserver.run.readiness.detach_output", lambda: detached.append(True))
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
