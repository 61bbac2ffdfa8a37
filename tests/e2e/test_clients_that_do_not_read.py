"""Clients that ask and do not read what they asked for, while others are served (F15, F37).

They are given 60 s, which no test waits for: the servers here take a second for it, and look twice a second.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest
from tests.e2e.raw import connect, everything, post
from tests.e2e.serving import ROOT, Home, Server, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SEND_TIMEOUT = 1.0
# Python runs this at its start; workers do without it.
HURRIED = f"""
import sys
if {{"modelserver", "modelserver.frontend"}} & set(sys.orig_argv):
    from modelserver.http import connection
    patient = connection.Listener.__init__
    connection.Listener.__init__ = lambda *args, **more: patient(*args, send_timeout={SEND_TIMEOUT}, **more)
    connection.check_regularly.__defaults__ = (0.5,)
"""
SIZE = 6_000_000  # bytes; more than the system holds for a connection
MIB = 1 << 20
# What a busy machine may take longer.
PATIENCE = 15.0


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "front ends"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_store: Path
) -> Iterator[Server]:
    """A server in a hurry, for all tests of this module."""
    folder = tmp_path_factory.mktemp("hurried")
    (folder / "sitecustomize.py").write_text(HURRIED)
    path = os.pathsep.join(map(str, (folder, ROOT / "app", ROOT / "handlers")))
    home = Home(folder / "home", {"PYTHONPATH": path})
    with serving(Server(home, model_store, settings={"frontend_processes": request.param})) as started:
        yield started.registered("echo.mar").registered("obey.mar")


def ask(path: str, order: object) -> bytes:
    """A request with this body in JSON."""
    return post(path, json.dumps(order).encode(), "Content-Type: application/json")


def is_cut_off(server: Server, sockets: set[str]) -> bool:
    """Whether the server has none of them any more; somebody else is served meanwhile."""
    assert server.predict("echo", b"x").content == b"x"
    return not sockets & server.sockets()


ASKED = {
    "a large body": ("inference", ask("/predictions/obey", {"do": "big", "bytes": SIZE})),
    "many answers": ("management", b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n" * 500),
}


@pytest.mark.parametrize(("listener", "asked"), ASKED.values(), ids=ASKED)
def test_an_answer_that_is_not_read(server: Server, listener: str, asked: bytes) -> None:
    """The connection ends before its answer does; others are served meanwhile, and nothing of it stays."""
    before = server.memory()
    with connect(server.port_of(listener), 30, small=True) as client:
        client.sendall(asked)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        held = server.sockets_to([client])
        assert len(held) == 1
        began = time.monotonic()
        wait_until(lambda: is_cut_off(server, held), "it is cut off", PATIENCE)
        assert time.monotonic() - began > SEND_TIMEOUT / 2
        assert len(everything(client)) < SIZE

    wait_until(lambda: server.memory() - before < 16 * MIB, "its answer is dropped", 5)
    assert "Traceback" not in server.home.log()


def test_an_answer_that_is_read_slowly(server: Server) -> None:
    """Who takes an answer steadily gets it whole, however slowly: less than the system takes from the server
    at a time, which is a megabyte or more, may be a second's worth.
    """
    with connect(server.port, 30, small=True) as client:
        client.sendall(ask("/predictions/obey", {"do": "big", "bytes": SIZE}))
        received, until = b"", time.monotonic() + 2.5 * SEND_TIMEOUT
        while time.monotonic() < until:
            received += client.recv(1 << 16)
            time.sleep(0.03)
        assert len(received) < SIZE / 4
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        while len(received) < SIZE:
            data = client.recv(1 << 20)
            assert data, f"cut off after {len(received)} bytes"
            received += data

    assert received.endswith(b"\r\n\r\n" + b"x" * SIZE)


@pytest.mark.parametrize("who", ["connection", "handler"])
def test_a_stream_that_is_not_read(server: Server, tmp_path: Path, who: str) -> None:
    """Whoever has enough of it first, the limit of the connection or that of the handler: the handler's work
    stops, the connection ends, others are served meanwhile, and little is held for it.
    """
    server.registered("parts.mar", model_name=who, response_timeout=1 if who == "handler" else 60)
    notes = tmp_path / "notes"
    before = most = server.memory()
    with connect(server.port, 30, small=True) as client:
        client.sendall(ask(f"/predictions/{who}", {"endless": 1 << 18, "notes": str(notes)}))
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        held = server.sockets_to([client])
        deadline = time.monotonic() + PATIENCE
        while not (is_cut_off(server, held) and notes.exists()):
            assert time.monotonic() < deadline, "it is not cut off"
            most = max(most, server.memory())

    assert notes.read_text() == "left\n"
    assert most - before < 48 * MIB
    if who == "handler":
        server.home.wait_for_log("reads its answer too slowly")
    wait_until(lambda: server.memory() - before < 16 * MIB, "what was held is dropped", 5)
    server.unregister(who)
