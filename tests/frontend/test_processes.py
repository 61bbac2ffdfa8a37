"""How many front ends there are, and what happens when they cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from modelserver.errors import ConfigError
from modelserver.frontend import processes as fleet_module
from modelserver.frontend.link import make_pair
from modelserver.frontend.process import Frontend, TellServer
from modelserver.frontend.processes import CORES_EACH, MOST, Fleet, front_ends
from modelserver.frontend.server_end import Desk
from modelserver.wire.frontend import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("cores", [1, 2, 7, 8, 15])
def test_few_cores(cores: int) -> None:
    """Where cores are few, the server takes in requests itself unless it is told otherwise."""
    assert front_ends("auto", cores) == 1
    assert front_ends(3, cores) == 3


def test_many_cores() -> None:
    """With more cores there are more, but never more than the server can feed."""
    assert front_ends("auto", 2 * CORES_EACH) == 2
    assert front_ends("auto", 4 * CORES_EACH) == min(4, MOST)
    assert front_ends("auto", 1000) == MOST
    assert front_ends(1, 1000) == 1


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


def make_fleet(listener: socket.socket) -> Fleet:
    return Fleet(2, listener, Setup(100, 1000, True, True), hot=None, app=None, on_status=print)  # type: ignore[arg-type]


async def test_front_ends_that_cannot_start(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's start fails with the setting's name; how they ended is in the log."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    fleet = make_fleet(listener)
    fleet.start()
    with pytest.raises(ConfigError, match="frontend_processes=2"):
        await asyncio.wait_for(fleet.open(10), 20)
    await fleet.close(1.0)

    assert "Front end 0 ended with status 1" in caplog.text


async def test_no_such_program(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot even be made is the same."""
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    fleet = make_fleet(listener)
    fleet.start()
    with pytest.raises(ConfigError):
        await asyncio.wait_for(fleet.open(10), 20)
    await fleet.close(1.0)

    assert fleet.pids == []


async def test_a_front_end_that_does_not_end(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is asked to end and does not is killed."""
    for name in ("CLOSE_PATIENCE", "END_PATIENCE"):
        monkeypatch.setattr(fleet_module, name, 0.1)
    fleet = make_fleet(listener)
    fleet.start()
    await fleet.open(10)
    pids = fleet.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(fleet.close(0.1), 10)

    assert len(pids) == 2
    assert fleet.pids == []
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_imports() -> None:
    """A front end imports neither torch nor the framework of the application, nor what workers need."""
    program = (
        "import sys, modelserver.frontend.process;"
        "print([m for m in ('torch', 'fastapi', 'starlette', 'pydantic', 'httpx', 'psutil', 'PIL', 'numpy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


async def test_logs_of_a_front_end(caplog: pytest.LogCaptureFixture) -> None:
    """Records reach the log of the server, with their own time, level, name and traceback."""
    desk = Desk(None, None, print)  # type: ignore[arg-type]
    ended = asyncio.Event()
    frontend = Frontend(None, None, 0, ended.set)  # type: ignore[arg-type]
    await join(desk, frontend)
    logger = logging.Logger("modelserver.somewhere")  # noqa: LOG001 - not among those that pytest watches
    logger.addHandler(TellServer(frontend.link))
    with caplog.at_level(logging.INFO):
        logger.info("said %s", "this")
        try:
            int("oh")
        except ValueError:
            logger.exception("failed")
        await asyncio.sleep(0.02)
    desk.link.abort()
    await asyncio.wait_for(ended.wait(), 5)

    first, second = caplog.records
    assert (first.name, first.levelno, first.getMessage()) == (
        "modelserver.somewhere",
        logging.INFO,
        "said this",
    )
    assert second.levelno == logging.ERROR
    assert second.getMessage().startswith("failed\nTraceback")
    assert second.getMessage().endswith("'oh'")


async def test_nonsense_from_a_front_end(caplog: pytest.LogCaptureFixture) -> None:
    """The link to it is cut, and the server lives on."""
    desk = Desk(None, None, print)  # type: ignore[arg-type]
    ours, theirs = make_pair()
    await asyncio.get_running_loop().create_unix_connection(lambda: desk.link, sock=ours)
    theirs.send(b"\xff" * 20)
    await asyncio.wait_for(desk.lost, 5)
    theirs.close()

    assert "makes no sense" in caplog.text
    with contextlib.suppress(asyncio.CancelledError):
        await desk.ready


async def join(desk: Desk, frontend: Any) -> None:
    """Connects both by a socket pair."""
    loop = asyncio.get_running_loop()
    ours, theirs = make_pair()
    await loop.create_unix_connection(lambda: desk.link, sock=ours)
    await loop.create_unix_connection(lambda: frontend.link, sock=theirs)
