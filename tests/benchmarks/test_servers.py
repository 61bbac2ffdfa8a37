"""Servers under measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from benchmarks.servers import (
    BenchmarkError,
    CpuMeter,
    call,
    echo_server,
    inherited_environment,
    model_server,
    process,
    running_first,
    thread_variables,
    wait_until_it_answers,
)

from modelserver.tools.tune.own_server import family, free_ports


def test_the_echo_answers_until_its_block_ends(tmp_path: Path) -> None:
    """A POST is answered 200, and afterwards the process is gone."""
    with echo_server(tmp_path) as server:
        status, answer = call(server.port, "POST", "/predictions/noop", b"x" * 64)
        assert psutil.pid_exists(server.pid)

    assert (status, answer) == (200, b'{\n  "ok": 1\n}')
    assert not psutil.pid_exists(server.pid)


def test_a_server_that_ends_is_an_error_with_its_output(tmp_path: Path) -> None:
    """What the process printed is in the message."""
    command = [sys.executable, "-c", "raise SystemExit('no memory')"]

    with process(command, tmp_path, {}) as child, pytest.raises(BenchmarkError, match="no memory"):
        wait_until_it_answers(child, free_ports(1)[0], "/", tmp_path)


def test_a_refused_registration_is_an_error(tmp_path: Path) -> None:
    """The server's answer is in the message."""
    (tmp_path / "store").mkdir()
    with model_server(tmp_path / "store", tmp_path / "server") as server:
        with pytest.raises(BenchmarkError, match="404"):
            server.register("none.mar", "none")
        assert (tmp_path / "server" / "tmp" / ".model_server.pid").read_text() == str(server.pid)

    assert not psutil.pid_exists(server.pid)


def test_descendants_end_with_the_block(tmp_path: Path) -> None:
    """A grandchild in a session of its own is not left behind."""
    code = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
        "time.sleep(60)"
    )
    with process([sys.executable, "-c", code], tmp_path, {}) as child:
        while len(relatives := family(child.pid)) < 2:
            assert child.poll() is None

    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in relatives)


def test_processor_time_of_descendants_counts() -> None:
    """A child's computing is seen through its parent's meter."""
    code = "while True: pass"
    meter = CpuMeter(psutil.Process().pid)
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        while CpuMeter(child.pid)._before.get(child.pid, 0.0) < 0.1:
            assert child.poll() is None
        used = meter.used()
        child.kill()

    assert used >= 0.1
    assert CpuMeter(child.pid).used() == 0


def test_the_environment_configures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchServe's variables stay outside, and import paths do not depend on the folder."""
    monkeypatch.setenv("TS_BATCH_SIZE", "3")
    monkeypatch.setenv("PYTHONPATH", "app:handlers")
    environment = inherited_environment()

    assert "TS_BATCH_SIZE" not in environment
    assert environment["PYTHONPATH"].split(":") == [
        str(Path("app").resolve()),
        str(Path("handlers").resolve()),
    ]


def test_threads_are_set_for_every_library() -> None:
    """The variables that numeric libraries read, or none."""
    assert set(thread_variables(3).values()) == {"3"}
    assert thread_variables(None) == {}


def test_environment_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Python processes that are started within run the code first."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    say = [sys.executable, "-c", "print('itself')"]
    with running_first(tmp_path, "print('first')"):
        within = subprocess.check_output(say, text=True)

    assert within == "first\nitself\n"
    assert "PYTHONPATH" not in os.environ
