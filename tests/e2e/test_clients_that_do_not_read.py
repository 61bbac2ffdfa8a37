"""Clients that ask and do not read what they asked for, while others are served (F15, F37).

They are given 60 s, which no test waits for: the servers here take a second for it, and look twice a second;
or they hold little of what is not read.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import time

import pytest
from tests.e2e import unread
from tests.e2e.grpc_client import grpc_settings
from tests.e2e.raw import connect, everything, post
from tests.e2e.serving import ROOT, Home, Server, serving, wait_until

pytestmark = pytest.mark.slow  # waits for limits of seconds, and holds hundreds of megabytes

SEND_TIMEOUT = 1.0
# Python runs this at its start; workers do without it.
HURRIED = f"""
import sys
if {{"modelserver", "modelserver.ext.frontends"}} & set(sys.orig_argv):
    from modelserver.surface.http import connection
    listener = connection.HttpListener
    patient = listener.__init__
    listener.__init__ = lambda *args, **more: patient(*args, send_timeout={SEND_TIMEOUT}, **more)
    listener.check_regularly.__defaults__ = (0.5,)
"""
SIZE = 6_000_000  # bytes; more than the system holds for a connection
MIB = 1 << 20
# A busy machine may take so much longer.
PATIENCE = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """A server in a hurry, whose front ends have the connections for inference, and itself the others."""
    folder = tmp_path_factory.mktemp("hurried")
    (folder / "sitecustomize.py").write_text(HURRIED)
    path = os.pathsep.join(map(str, (folder, ROOT / "app", ROOT / "handlers")))
    home = Home(folder / "home", {"PYTHONPATH": path})
    with serving(Server(home, model_store, settings={"frontend_processes": 2})) as started:
        yield started.registered("echo.mar").registered("obey.mar")


def ask(path, order):
    return post(path, json.dumps(order).encode(), "Content-Type: application/json")


def is_cut_off(server, sockets):
    """Whether the server has none of them any more; somebody else is served meanwhile."""
    assert server.predict("echo", b"x").content == b"x"
    return not sockets & server.sockets()


REQUESTS = {
    "a large body": ("inference", ask("/predictions/obey", {"do": "big", "bytes": SIZE})),
    "many answers": ("management", b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n" * 500),
}


@pytest.mark.parametrize(("listener", "query"), REQUESTS.values(), ids=REQUESTS)
def test_an_answer_that_is_not_read(server, listener, query):
    """The connection ends before its answer does; others are served meanwhile, and nothing of it stays."""
    before = server.memory()
    with connect(server.port_of(listener), 30, small=True) as client:
        held = server.sockets_to([client])
        began = time.monotonic()
        client.sendall(query)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert len(held) == 1
        wait_until(lambda: is_cut_off(server, held), "it is cut off", PATIENCE)
        assert time.monotonic() - began > SEND_TIMEOUT / 2
        assert len(everything(client)) < SIZE

    wait_until(lambda: server.memory() - before < 16 * MIB, "its answer is dropped", 5)
    assert "Traceback" not in server.home.log()


@pytest.mark.parametrize("who", ["connection", "handler"])
def test_a_stream_that_is_not_read(request, tmp_path, who):
    """Whoever has enough of it first, the limit of the connection or that of the handler: the handler's work
    stops, the connection ends, others are served meanwhile, and little is held for it.
    """
    server = request.getfixturevalue("server" if who == "connection" else "bounded")
    server.registered("parts.mar", model_name=who, response_timeout=1 if who == "handler" else 60)
    notes = tmp_path / "notes"
    before = most = server.memory()
    with connect(server.port, 30, small=True) as client:
        held = server.sockets_to([client])
        client.sendall(ask(f"/predictions/{who}", {"endless": 1 << 18, "notes": str(notes)}))
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
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


def test_a_chat_that_is_not_read_holds_no_other(server):
    """The model waits for its client, which is cut off as others are; another chat goes on meanwhile."""
    server.registered("chatty.mar")

    def chat(count):
        message = {"role": "user", "content": f"count {count}"}
        return {"model": "chatty", "stream": True, "messages": [message]}

    before = server.memory()
    with connect(server.port, 30, small=True) as client:
        held = server.sockets_to([client])
        client.sendall(ask("/v1/chat/completions", chat(1 << 40)))
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        other = server.inference.post("/v1/chat/completions", json=chat(500)).text
        wait_until(lambda: is_cut_off(server, held), "it is cut off", PATIENCE)

    assert '"content":"499 "' in other
    assert other.endswith("data: [DONE]\n\n")
    wait_until(lambda: server.memory() - before < 16 * MIB, "what was held is dropped", 5)


def test_answers_that_are_read_in_drops(server):
    """A client that takes less than a tenth of its answer in the time to send is cut off."""
    with connect(server.port, 30, small=True) as client:
        held = server.sockets_to([client])
        client.sendall(unread.REQUEST)

        def is_over():
            with contextlib.suppress(ConnectionError):
                client.recv(3000)
            return is_cut_off(server, held)

        wait_until(is_over, "it is cut off", PATIENCE)


def test_a_client_that_is_gone_while_nothing_is_read(server):
    """Whose next request waits for the answer to the one before it is not read from: a reset is noticed."""
    server.registered("obey.mar", model_name="busy")
    with connect(server.port) as connection:
        connection.sendall(ask("/predictions/busy", {"do": "sleep", "seconds": 60}) * 2)
        server.wait_busy("busy")
        held = server.sockets_to([connection])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    wait_until(lambda: is_cut_off(server, held), "it is gone", PATIENCE)
    os.kill(server.describe("busy")["workers"][0]["pid"], signal.SIGKILL)
    server.unregister("busy")


CLIENTS = 60
JSON = {"content-type": "application/json"}
LIMIT = 64 * MIB
# Answers on their way from workers to clients, copies, and what the allocator keeps.
BESIDE = 64 * MIB


@pytest.fixture(scope="module")
def bounded(tmp_path_factory, model_store):
    """A server that holds little of what clients do not take, for a minute."""
    home = Home(tmp_path_factory.mktemp("bounded"))
    settings = {"max_outgoing_bytes": LIMIT, "frontend_processes": 2, "job_queue_size": 1000}
    with serving(Server(home, model_store, settings={**grpc_settings(), **settings})) as started:
        yield started.registered("echo.mar").registered("obey.mar")


def watch(server, before, happened):
    def has_happened():
        grown = server.memory() - before
        assert grown < LIMIT + BESIDE, f"{grown / MIB:.0f} MiB"
        return bool(happened())

    wait_until(has_happened, "it happens", 60)


def is_served(server):
    """Whether the server answers somebody who reads; if not, it says when to come back."""
    answer = server.predict("echo", b"x")
    assert answer.content == b"x" or (answer.status_code == 503 and answer.headers["retry-after"])
    return answer.status_code == 200


def test_many_connections_that_do_not_read(bounded):
    """Those that waited longest end, new requests are refused, and somebody who reads is served."""
    before = bounded.memory()
    with contextlib.ExitStack() as stack:
        for number in range(CLIENTS):
            client = stack.enter_context(unread.ask(bounded.port))
            assert client.recv(13) in (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")
            if not number % 10:
                watch(bounded, before, lambda: is_served(bounded))
        watch(bounded, before, lambda: "had waited longest were dropped" in bounded.home.log())
        wait_until(
            lambda: len(bounded.predict("obey", unread.ORDER, headers=JSON).content) == unread.SIZE, "all"
        )

    assert "Traceback" not in bounded.home.log()


def test_many_calls_with_closed_windows_are_dropped(bounded):
    """The same for calls of gRPC that are computed at the same time."""
    before = bounded.memory()
    port = int(str(bounded.settings["grpc_inference_port"]))
    with unread.call(port, CLIENTS):
        dropped = CLIENTS - LIMIT // unread.SIZE - 1
        watch(bounded, before, lambda: bounded.home.log().count("reads too little") >= dropped)
        watch(bounded, before, lambda: is_served(bounded))

    assert "Traceback" not in bounded.home.log()
