import asyncio
import contextlib
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e.load import Load, is_echo
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
    children = psutil.Process(server.pid).children() if psutil.pid_exists(server.pid) else []
    return [process for process in children if "modelserver.ext.frontends" in command_of(process)]


def connected(process, server):
    return [c for c in connections_of(process, "tcp4") if c.laddr.port == server.port and c.raddr]


def answer_of(connection):
    received, length = b"", None
    while length is None or len(received.partition(b"\r\n\r\n")[2]) < length:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError
        received += data
        if b"\r\n\r\n" in received:
            length = int(re.search(rb"content-length: (\d+)", received)[1])
    first, _, body = received.partition(b"\r\n\r\n")
    return first, body


def test_all_front_ends_take_requests(fronts):
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
            ids.update(re.search(rb"x-request-id: (\S+)", first)[1] for first, _ in answers)
            counts = len(connected(first, fronts)), len(connected(second, fronts))
            assert sum(counts) == len(clients) + before
            return min(counts) >= 4

        # On a busy machine one may be kept from running for longer than the other waits for it.
        wait_until(shared, "both take connections")
        assert len(ids) == len(clients)
        assert connected(psutil.Process(fronts.pid), fronts) == []


async def send(port, numbers):
    """Sends the requests of these numbers over one connection; returns those that got another's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wrong = []
    for number in numbers:
        body = f"token-{number}-".encode() * (number % 50 + 1)
        writer.write(post("/predictions/echo", body, f"x-request-id: id-{number}"))
        first = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(int(re.search(rb"content-length: (\d+)", first)[1]))
        if answer != body or f"x-request-id: id-{number}\r\n".encode() not in first:
            wrong.append((number, first, answer[:100]))
    writer.close()
    await writer.wait_closed()
    return wrong


async def test_each_request_gets_its_own_answer(fronts):
    """So it does of 2000 marked ones over 80 connections, and of bodies near the limit (F23)."""
    wrong = await asyncio.gather(*(send(fronts.port, range(start, REQUESTS, 80)) for start in range(80)))

    assert [each for some in wrong for each in some] == []
    bodies = [bytes([number]) * (6_000_000 if number % 4 == 0 else 50_000 + number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: fronts.predict("echo", body).content, bodies))
    assert [answer == body for answer, body in zip(answers, bodies, strict=True)] == [True] * 8
    assert fronts.metric("modelserver_queue_requests", model_name="echo") == 0


def plain(answer):
    answer = re.sub(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"ID", answer)
    return re.sub(rb"server-timing: [^\r]*", b"server-timing", answer)


# Others are compared in tests/ext/frontends/test_frontend_end.py, without processes.
CONVERSATIONS = {
    "200": post("/predictions/echo", b"hello", "Connection: close"),
    "no such path": post("/nothing/here", b"x"),
    "announced too large": head("/predictions/echo", "Content-Length: 99999999"),
    "no HTTP": b"NONSENSE\r\n\r\n",
    "V1": post("/v1/models/echo:predict", b'{"instances": [1, 2]}', "Connection: close"),
    "V2": post("/v2/models/echo/infer", b'{"inputs": []}', "Connection: close"),
    "repository": post("/v2/repository/models/none/load", b"{}", "Connection: close"),
    "gzip": post("/predictions/echo", b"x", "Content-Encoding: gzip"),
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
    """Byte for byte, ids and times apart; each has its type, and browsers must not look for another."""
    answer = plain(converse(fronts.port, conversation))

    assert answer == plain(converse(alone.port, conversation))
    count = len(re.findall(rb"HTTP/1.1 [2-5]", answer))
    assert count
    assert answer.count(b"x-content-type-options: nosniff\r\n") == count
    assert answer.count(b"content-type: ") == count


def test_each_answer_is_counted_and_logged_once(fronts):
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
        lambda: rows if len(rows := marked(fronts)) >= 14 else None, "the lines are in the access log", 5
    )
    assert sorted(number for number, _ in lines) == list(range(14))
    assert dict(lines) == {**dict.fromkeys(range(11), 200), 11: 404, 12: 404, 13: 413}


@pytest.mark.parametrize("kind", ["alone", "fronts"])
def test_failure_can_be_followed(request, kind):
    """The answer has reason and place; its id is in the body, and in the logs of models and of access."""
    server = request.getfixturevalue(kind)
    answer = server.inference.post(
        "/predictions/obey", json={"do": "raise"}, headers={"x-request-id": "mine-7"}
    )
    body = answer.json()

    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "mine-7")
    assert list(body) == ["code", "type", "message", "request_id"]
    assert (body["code"], body["type"], body["request_id"]) == (503, "InternalServerException", "mine-7")
    assert body["message"].startswith("Prediction failed: ")
    assert "(obey.py, line " in body["message"]
    server.home.wait_for_log("Failed for request mine-7:", "model_log.log")
    server.home.wait_for_log(" mine-7\n", "access_log.log")


def marked(server):
    """Number and status of the marked lines of the access log, which have the form of one process's."""
    request = r"\S+ - /127\.0\.0\.1:\d+ \"(?:POST|GET) \S+\?mark=(\d+) HTTP/1\.1\""
    pattern = rf"{request} (?:(?=[45])(\d+) \d+ [!-~]+|(\d+) \d+)"
    lines = server.home.log("access_log.log").splitlines()
    return [(int(m[1]), int(m[2] or m[3])) for line in lines if (m := re.fullmatch(pattern, line))]


def test_front_end_that_is_killed_costs_its_own_connections(fronts):
    before = front_ends(fronts)
    with Load(fronts, "echo", 12, is_echo) as load:
        load.more()
        lost = len(connected(before[0], fronts))
        before[0].kill()
        wait_until(lambda: len(front_ends(fronts)) == 2, "it is replaced")
        load.more()

    assert set(load.statuses) == {200}
    assert [each for each in load.wrong if isinstance(each[1], str)] == []
    assert 0 < len(load.wrong) <= lost
    after = front_ends(fronts)
    assert before[1] in after
    assert before[0] not in after
    fronts.home.wait_for_log("Front end")
    assert fronts.metric("modelserver_queue_requests", model_name="echo") == 0


def test_front_ends_ignore_signals(fronts):
    """A front end takes no notice of the SIGTERM that a service manager sends to all processes."""
    processes = wait_until(lambda: pair if len(pair := front_ends(fronts)) == 2 else None, "both are there")
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


def test_all_addresses_may_be_one(start_server, tmp_path):
    """Management and metrics work behind front ends that share the address; so does a socket file."""
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


def test_front_ends_end_with_a_killed_server(start_server, pool, tmp_path):
    server = start_server(frontend_processes=2).registered("obey.mar")
    processes = front_ends(server)
    future = pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 20})
    server.wait_busy("obey")
    server.process.kill()
    server.process.wait(5)

    wait_until(lambda: not any(process.is_running() for process in processes), "they end", 5)
    assert future.exception(10) is not None
    wait_until(lambda: not server.workers(), "its workers end", 5)
    for left in server.home.workdirs():
        left.rename(tmp_path / "left")
    server.home.pid_file.unlink(missing_ok=True)
