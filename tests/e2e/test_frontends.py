"""Several front-end processes before one server (``frontend_processes``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
import time

import psutil
import pytest
from tests.e2e.raw import connect, converse, head, post
from tests.e2e.serving import Home, Server, command_of, connections_of, serving, wait_until

REQUESTS = 2000


@pytest.fixture(scope="module")
def fronts(tmp_path_factory, model_store):
    """A server with two front ends and an echo model, for all tests of this module."""
    home = Home(tmp_path_factory.mktemp("fronts"))
    with serving(Server(home, model_store, settings={"frontend_processes": 2})) as server:
        yield server.registered("echo.mar", batch_size=8).registered("obey.mar")


def front_ends(server):
    """The processes that take in requests."""
    found = psutil.Process(server.pid).children() if psutil.pid_exists(server.pid) else []
    return [process for process in found if "modelserver.ext.frontends" in command_of(process)]


def connected(process, server):
    """The process's connections at the inference port."""
    return [c for c in connections_of(process, "tcp4") if c.laddr.port == server.port and c.raddr]


def answer_of(connection):
    """One answer: its head and its body."""
    received, length = b"", None
    while length is None or len(received.partition(b"\r\n\r\n")[2]) < length:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError
        received += data
        if b"\r\n\r\n" in received:
            length = int(re.search(rb"content-length: (\d+)", received)[1])
    said, _, body = received.partition(b"\r\n\r\n")
    return said, body


def test_both_take_requests(fronts):
    """Both front ends have connections, and the server itself has none; no id comes twice."""
    first, second = front_ends(fronts)
    clients, ids = [], set()
    with contextlib.ExitStack() as stack:
        before = len(connected(first, fronts)) + len(connected(second, fronts))

        def shared():
            """Whether both have some of the clients, of whom there are 16 more."""
            more = [stack.enter_context(connect(fronts.port)) for _ in range(16)]
            for number, client in enumerate(more):
                client.sendall(post("/predictions/echo", b"%d" % number))
            answers = [answer_of(client) for client in more]
            assert [body for _, body in answers] == [b"%d" % number for number in range(16)]
            clients.extend(more)
            ids.update(re.search(rb"x-request-id: (\S+)", said)[1] for said, _ in answers)
            counts = len(connected(first, fronts)), len(connected(second, fronts))
            assert sum(counts) == len(clients) + before
            return min(counts) >= 4

        # On a busy machine one may be kept from running for longer than the other waits for it.
        wait_until(shared, "both take connections")
        assert len(ids) == len(clients)
        assert connected(psutil.Process(fronts.pid), fronts) == []


async def ask(port, numbers):
    """Sends the requests of these numbers over one connection; returns those that got another's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wrong = []
    for number in numbers:
        body = f"token-{number}-".encode() * (number % 50 + 1)
        writer.write(post("/predictions/echo", body, f"x-request-id: id-{number}"))
        said = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(int(re.search(rb"content-length: (\d+)", said)[1]))
        if answer != body or f"x-request-id: id-{number}\r\n".encode() not in said:
            wrong.append((number, said, answer[:100]))
    writer.close()
    await writer.wait_closed()
    return wrong


async def test_each_gets_its_own_answer(fronts):
    """Of 2000 marked requests over 80 connections each gets exactly its own answer (F23)."""
    wrong = await asyncio.gather(*(ask(fronts.port, range(start, REQUESTS, 80)) for start in range(80)))

    assert [each for some in wrong for each in some] == []
    assert fronts.metric("modelserver_queue_requests", model_name="echo") == 0


def test_large_bodies(fronts, pool):
    """Bodies near the limit cross whole, many at a time, and neighbours are not mixed up."""
    bodies = [bytes([number]) * (6_000_000 if number % 4 == 0 else 50_000 + number) for number in range(12)]
    answers = list(pool.map(lambda body: fronts.predict("echo", body).content, bodies))

    assert [answer == body for answer, body in zip(answers, bodies, strict=True)] == [True] * 12


def plain(answer):
    """An answer without what differs each time."""
    answer = re.sub(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"ID", answer)
    return re.sub(rb"server-timing: [^\r]*", b"server-timing", answer)


CONVERSATIONS = {
    "200": post("/predictions/echo", b"hello", "Connection: close"),
    "no such model": post("/predictions/none", b"x"),
    "no such version": post("/predictions/echo/7.0", b"x"),
    "no such path": post("/nothing/here", b"x"),
    "method": b"DELETE /ping/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "announced too large": head("/predictions/echo", "Content-Length: 99999999"),
    "announced too large elsewhere": head("/ping", "Content-Length: 99999999"),
    "no HTTP": b"NONSENSE\r\n\r\n",
    "head too large": head("/predictions/echo", f"x-large: {'x' * 70_000}"),
    "V1": post("/v1/models/echo:predict", b'{"instances": [1, 2]}', "Connection: close"),
    "bad encoding": post("/predictions/echo", b"x", "Content-Encoding: gzip"),
    "strange encoding": post("/predictions/echo", b"x", "Content-Encoding: strange"),
    "ping": b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "v1 models": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "v1 model": b"GET /v1/models/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "description": b"OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "continue": post("/predictions/echo", b"x", "Expect: 100-continue", "Connection: close"),
    "HTTP/1.0": b"POST /predictions/echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
    "pipelined": post("/predictions/echo", b"1") * 3 + post("/predictions/none"),
}


@pytest.fixture(scope="module")
def alone(shared_server):
    """A server as one process, with the same models."""
    return shared_server.registered("echo.mar", batch_size=8).registered("obey.mar")


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_answers_are_those_of_one_process(fronts, alone, conversation):
    """Byte for byte, ids and times apart: answers, refusals, errors, other routes; each has its type, and
    browsers must not look for another.
    """
    answer = plain(converse(fronts.port, conversation))

    assert answer == plain(converse(alone.port, conversation))
    count = len(re.findall(rb"HTTP/1.1 [2-5]", answer))
    assert count
    assert answer.count(b"x-content-type-options: nosniff\r\n") == count
    assert answer.count(b"content-type: ") == count


def test_answers_in_parts(fronts, alone):
    """They come part by part, with the bytes of one process."""
    body = b'{"parts": ["one", "two", "three"], "last": "four", "headers": {"x-own": "1"}}'
    asked = post("/predictions/parts", body, "Content-Type: application/json", "Connection: close")
    for server in (fronts, alone):
        server.registered("parts.mar")
    answer = plain(converse(fronts.port, asked))

    assert b"5\r\nthree\r\n4\r\nfour\r\n0\r\n\r\n" in answer
    assert answer == plain(converse(alone.port, asked))
    fronts.unregister("parts")


def test_counters_and_access_log(fronts):
    """Each answer is counted once and has one line in the access log, whoever gave it (reference 15.5)."""
    before = {name: fronts.metric(name) for name in ("Requests2XX", "Requests4XX")}
    for number in range(10):
        fronts.inference.post(f"/predictions/echo?mark={number}", content=b"x")
    fronts.inference.get("/ping?mark=10")
    fronts.inference.post("/predictions/none?mark=11")
    fronts.inference.post("/nothing?mark=12")
    converse(fronts.port, head("/predictions/echo?mark=13", "Content-Length: 99999999"))

    # Reading the metrics is itself an answer: one was given between the two readings of each name.
    assert fronts.metric("Requests2XX") - before["Requests2XX"] == 10 + 2
    assert fronts.metric("Requests4XX") - before["Requests4XX"] == 3
    lines = wait_until(
        lambda: found if len(found := marked(fronts)) >= 14 else None, "the lines are in the access log", 5
    )
    assert sorted(number for number, _ in lines) == list(range(14))
    assert dict(lines) == {**dict.fromkeys(range(11), 200), 11: 404, 12: 404, 13: 413}


def marked(server):
    """Number and status of the marked lines of the access log, which have the form of one process's."""
    asked = r"\S+ - /127\.0\.0\.1:\d+ \"(?:POST|GET) \S+\?mark=(\d+) HTTP/1\.1\""
    pattern = rf"{asked} (?:(?=[45])(\d+) \d+ [!-~]+|(\d+) \d+)"
    lines = server.home.log("access_log.log").splitlines()
    return [(int(m[1]), int(m[2] or m[3])) for line in lines if (m := re.fullmatch(pattern, line))]


def test_clients_that_leave(fronts, pool):
    """A client that leaves takes its queued work with it (F24, F37)."""
    before = fronts.metric("modelserver_cancelled_total", model_name="obey")
    busy = [pool.submit(fronts.predict, "obey", {"do": "sleep", "seconds": 0.4}) for _ in range(4)]
    wait_until(lambda: pending(fronts) > 0, "some wait")
    waiting = pending(fronts)
    with connect(fronts.port) as client:
        client.sendall(post("/predictions/obey", b'{"do": "nothing"}', "Content-Type: application/json"))
        wait_until(lambda: pending(fronts) > waiting, "it waits")
    wait_until(
        lambda: fronts.metric("modelserver_cancelled_total", model_name="obey") == before + 1, "it left"
    )

    assert not all(each.done() for each in busy)
    assert [each.result(10).status_code for each in busy] == [200] * 4


def pending(server):
    """The requests that wait for the model that obeys."""
    return server.describe("obey")["jobQueueStatus"]["pendingRequests"]


class Client(threading.Thread):
    """Asks over one connection again and again, each time something else; counts what it got, the answers
    that were not its own, and the times it was cut off. ``port`` is its side of the connection.
    """

    def __init__(self, server, stop):
        super().__init__(daemon=True)
        self.server, self.stop = server, stop
        self.statuses, self.strange, self.cut_off = [], [], 0
        self.port = None
        self.start()

    def run(self):
        connection = self.connect()
        while not self.stop.is_set():
            if not self.ask(connection):
                self.cut_off += 1
                connection.close()
                connection = self.connect()
        connection.close()

    def connect(self):
        connection = connect(self.server.port)
        self.port = connection.getsockname()[1]
        return connection

    def ask(self, connection):
        own = f"{self.name}: {len(self.statuses)}".encode()
        try:
            connection.sendall(post("/predictions/echo", own))
            said, body = answer_of(connection)
        except OSError:
            return False
        self.statuses.append(said[9:12])
        if body != own:
            self.strange.append((own, body))
        return True


@contextlib.contextmanager
def asking(server, count):
    """Clients that are served, and go on asking for the time of the block."""
    stop = threading.Event()
    clients = [Client(server, stop) for _ in range(count)]
    try:
        wait_served(clients)
        yield clients
    finally:
        stop.set()
        for client in clients:
            client.join(10)


def wait_served(clients):
    """Until each has got some more answers."""
    counts = [len(client.statuses) for client in clients]
    wait_until(
        lambda: all(len(c.statuses) > n + 5 for c, n in zip(clients, counts, strict=True)), "all are served"
    )


def test_a_front_end_that_is_killed(fronts):
    """It is replaced; only its own connections break, and none of what the others asked is lost."""
    before = front_ends(fronts)
    with asking(fronts, 12) as clients:
        lost = len(connected(before[0], fronts))
        before[0].kill()
        wait_until(lambda: len(front_ends(fronts)) == 2, "it is replaced")
        wait_served(clients)

    assert {status for client in clients for status in client.statuses} == {b"200"}
    assert [client.strange for client in clients if client.strange] == []
    assert 0 < sum(client.cut_off for client in clients) <= lost
    after = front_ends(fronts)
    assert before[1] in after
    assert before[0] not in after
    fronts.home.wait_for_log("Front end")
    assert fronts.metric("modelserver_queue_requests", model_name="echo") == 0


def test_a_front_end_that_is_stopped(fronts):
    """It keeps its own clients waiting; those of the other, and new ones, are served as before. Once it goes
    on all are, each with its own answers, and nobody was cut off.
    """
    wait_until(lambda: both_take(fronts), "both take connections")
    before = front_ends(fronts)
    with asking(fronts, 12) as clients:
        ports = {connection.raddr.port for connection in connected(before[0], fronts)}
        stopped = [client for client in clients if client.port in ports]
        others = [client for client in clients if client not in stopped]
        before[0].suspend()
        try:
            # What it had read is answered without it; after that nothing comes.
            wait_served(others)
            counts = [len(client.statuses) for client in stopped]
            for number in range(20):
                with connect(fronts.port) as client:
                    client.sendall(post("/predictions/echo", b"%d" % number))
                    assert answer_of(client)[1] == b"%d" % number
            wait_served(others)
            assert [len(client.statuses) for client in stopped] == counts
        finally:
            before[0].resume()
        wait_served(clients)

    assert min(len(stopped), len(others)) >= 2
    assert {status for client in clients for status in client.statuses} == {b"200"}
    assert [client.strange for client in clients if client.strange] == []
    assert sum(client.cut_off for client in clients) == 0
    assert front_ends(fronts) == before
    assert fronts.metric("modelserver_queue_requests", model_name="echo") == 0
    assert fronts.metric("modelserver_batches_in_flight", model_name="echo") == 0


def both_take(server):
    """Whether each of the two takes connections: one that was just started is not ready for them."""
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(connect(server.port)).sendall(post("/ping"))
        time.sleep(0.05)
        return [len(connected(process, server)) > 1 for process in front_ends(server)] == [True, True]


def test_requests_of_a_front_end_that_is_killed(fronts, pool):
    """They are taken out of the queue as if their clients had left."""
    before = fronts.metric("modelserver_cancelled_total", model_name="obey")
    busy = pool.submit(fronts.management.get, "/models")
    body = b'{"do": "sleep", "seconds": 0.7}'
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(fronts.port)) for _ in range(6)]
        for client in clients:
            client.sendall(post("/predictions/obey", body, "Content-Type: application/json"))
        wait_until(lambda: pending(fronts) >= 3, "they wait")
        for process in front_ends(fronts):
            process.kill()
        fronts.wait_pending("obey", 0)
        answered = len([client for client in clients if outcome(client)])

    assert answered < 3
    wait_until(
        lambda: fronts.metric("modelserver_cancelled_total", model_name="obey") == before + 6 - answered,
        "all the others are cancelled",
    )
    assert busy.result(10).status_code == 200
    wait_until(lambda: len(front_ends(fronts)) == 2, "they are replaced")
    assert fronts.predict("echo", b"x").content == b"x"


def outcome(client):
    """What came over a connection that is not there any more."""
    try:
        return client.recv(65536)
    except ConnectionResetError:
        return b""


def test_they_are_light(fronts):
    """A front end has loaded neither torch nor what the application needs, and holds no listener but one."""
    process = front_ends(fronts)[0]
    mapped = {os.path.basename(region.path) for region in process.memory_maps()}

    assert not {name for name in mapped if "torch" in name or "pydantic" in name}
    listening = [c.laddr.port for c in connections_of(process, "inet") if c.status == psutil.CONN_LISTEN]
    assert listening == [fronts.port]


def test_signals_are_for_the_server(fronts):
    """A front end takes no notice of the SIGTERM that a service manager sends to all processes."""
    processes = wait_until(lambda: found if len(found := front_ends(fronts)) == 2 else None, "both are there")
    wait_until(lambda: all(map(ignores_sigterm, processes)), "they have begun")
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    time.sleep(0.2)

    assert front_ends(fronts) == processes
    assert fronts.predict("echo", b"x").content == b"x"


def ignores_sigterm(process):
    with open(f"/proc/{process.pid}/status", encoding="utf-8") as status:
        ignored = re.search(r"SigIgn:\s+([0-9a-f]+)", status.read())[1]
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


# Servers of their own


def test_drain(start_server, pool):
    """After SIGTERM no connection is taken, idle ones are closed, what was accepted is answered, and all
    processes end (F49).
    """
    server = start_server(frontend_processes=2).registered("obey.mar", batch_size=4)
    idle = connect(server.port)
    idle.sendall(post("/ping"))
    answer_of(idle)
    processes = front_ends(server)
    futures = [
        pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 0.1, "token": n}) for n in range(20)
    ]
    wait_until(
        lambda: server.metric("ts_inference_requests_total", model_name="obey") >= 20, "they are accepted"
    )
    server.terminate()
    wait_until(lambda: refuses(server), "new connections are refused", 5)
    assert idle.recv(1) == b""
    idle.close()

    assert not all(future.done() for future in futures)
    assert [future.result(20).json()["token"] for future in futures] == list(range(20))
    assert server.stop() == 0
    assert [process.is_running() for process in processes] == [False, False]
    assert len(re.findall(r'"POST /predictions/obey HTTP/1.1" 200', server.home.log("access_log.log"))) == 20


def refuses(server):
    try:
        connect(server.port).close()
    except OSError:
        return True
    return False


@pytest.mark.slow
def test_drain_under_load(start_server):
    """Clients that go on asking while the server ends get an answer to all that they sent, or see the end
    of their connection before the first byte of one.
    """
    server = start_server(frontend_processes=2).registered("echo.mar", batch_size=8)
    broken = []

    def keep_asking():
        with contextlib.suppress(ConnectionError), connect(server.port) as connection:
            while True:
                received = b""
                connection.sendall(post("/predictions/echo", b"hello"))
                while not received.endswith(b"hello"):
                    data = connection.recv(65536)
                    if not data:
                        broken.append(received)
                        return
                    received += data

    threads = [threading.Thread(target=keep_asking) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert server.stop() == 0
    for thread in threads:
        thread.join(20)

    assert set(broken) <= {b""}


@pytest.mark.slow
def test_a_client_that_never_finishes(start_server):
    """Who sends half a request keeps the server from ending for a few seconds only."""
    server = start_server(frontend_processes=2)
    with connect(server.port) as slow:
        slow.sendall(head("/predictions/echo", "Content-Length: 10") + b"half")
        time.sleep(0.1)

        assert server.stop() == 0
        assert front_ends(server) == []


def test_one_address_for_all(start_server, tmp_path):
    """Management and metrics work behind the front ends too, where they share the address; a socket file
    is shared as a port is.
    """
    path = tmp_path / "s"
    names = ("inference_address", "management_address", "metrics_address")
    server = start_server(frontend_processes=2, **dict.fromkeys(names, f"unix:{path}"))
    server.registered("echo.mar")

    assert server.predict("echo", b"x").content == b"x"
    assert server.describe("echo")["modelName"] == "echo"
    assert server.metric("ts_inference_requests_total", model_name="echo") == 1
    assert server.management.options("/").json()["openapi"]
    server.unregister("echo")
    assert server.predict("echo", b"x").status_code == 404
    assert server.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("how", ["killed", pytest.param("second SIGTERM", marks=pytest.mark.slow)])
def test_they_end_with_their_server(start_server, pool, tmp_path, how):
    """However the server ends, its front ends do not outlive it."""
    server = start_server(frontend_processes=2).registered("obey.mar")
    processes = front_ends(server)
    future = pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 20})
    wait_until(lambda: server.metric("modelserver_batches_in_flight", model_name="obey") == 1, "it is busy")
    if how == "killed":
        server.process.kill()
    else:
        server.terminate()
        wait_until(lambda: "Stopping" in server.home.log(), "it drains")
        server.process.send_signal(signal.SIGTERM)
    server.process.wait(5)

    wait_until(lambda: not any(process.is_running() for process in processes), "they end", 5)
    assert future.exception(10) is not None
    wait_until(lambda: not server.workers(), "its workers end", 5)
    for left in server.home.workdirs():
        left.rename(tmp_path / "left")
    server.home.pid_file.unlink(missing_ok=True)
