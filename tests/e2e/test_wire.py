"""What clients can do at the level of HTTP to requests and to the server, on all ports, front ends or not."""

import contextlib
import re
import select
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from tests.e2e.raw import CLOSE, connect, converse, statuses
from tests.e2e.serving import Home, Server, free_port, serving, wait_until

UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAA\r\n",
}
JSON = b"Content-Type: application/json\r\n"
SIZE = 6_000_000


@contextlib.contextmanager
def a_server(folder, model_store, processes):
    # Java's client sends 200 requests at once, which no busy machine must refuse.
    settings = {"frontend_processes": processes, "job_queue_size": 1000}
    with serving(Server(Home(folder), model_store, settings=settings)) as started:
        yield started.registered("echo.mar").registered("obey.mar")


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    with a_server(tmp_path_factory.mktemp("wire"), model_store, 1) as started:
        yield started


@pytest.fixture(scope="module")
def divided(tmp_path_factory, model_store):
    with a_server(tmp_path_factory.mktemp("divided"), model_store, 2) as started:
        yield started


@pytest.fixture(params=["server", "divided"], ids=["one process", "front ends"])
def either(request):
    return request.getfixturevalue(request.param)


def post(path, body, lines=b""):
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n" % (path, lines, len(body))
    return head + body


def chunked(path, body, lines=b"", trailers=b""):
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (path, lines)
    return head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


def get(path, body, lines=b""):
    return post(path, body, lines).replace(b"POST", b"GET", 1)


@pytest.mark.parametrize(
    ("role", "path"), [("inference", b"/ping"), ("management", b"/models"), ("metrics", b"/metrics")]
)
@pytest.mark.parametrize("offer", UPGRADES)
def test_request_inside_a_body_is_not_executed(server, role, path, offer):
    """No port executes a request inside a body, sent in one piece with its head or after it: the access log
    has the request and the one behind it, and nothing between them.
    """
    mark = f"{role}-{offer}".encode()
    evil = b"GET %b?inner-%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (path, mark)
    outer = get(path + b"?outer-" + mark, evil, UPGRADES[offer])
    last = b"GET %b?last-%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % (path, mark)
    at = len(outer) - len(evil)

    assert statuses(converse(server.port_of(role), outer, last)) == [200, 200]
    assert statuses(converse(server.port_of(role), outer[:at], outer[at:], last, pause=0.05)) == [200, 200]
    wait_until(lambda: len(logged(server, mark.decode())) >= 4, "both are logged")
    assert logged(server, mark.decode()) == ["outer", "last"] * 2


def logged(server, mark):
    return re.findall(rf"/\w+\?(\w+)-{mark} ", server.home.log("access_log.log"))


def test_request_inside_a_body_is_not_executed_with_a_token(start_server):
    """Not even with the token in it, nor does a trailer send one; front ends serve management there."""
    address = f"http://127.0.0.1:{free_port()}"
    server = start_server(
        token_authorization="always",
        frontend_processes=2,
        **dict.fromkeys(("inference_address", "management_address"), address),
    )
    token = server.tokens()["management"]
    bearer = f"Authorization: Bearer {token}\r\n".encode()
    evil = post(b"/models?url=echo.mar", b"", bearer)
    last = CLOSE.replace(b"/ping", b"/models").replace(
        b"Host: localhost\r\n", b"Host: localhost\r\n" + bearer
    )
    port = server.port_of("management")
    for offer in (b"", *UPGRADES.values()):
        whole = get(b"/models", evil, bearer + offer)
        at = len(whole) - len(evil)
        assert statuses(converse(port, whole, last)) == [200, 200]
        assert statuses(converse(port, whole[:at], whole[at:], last, pause=0.1)) == [200, 200]
    assert statuses(converse(port, chunked(b"/models?url=echo.mar", b"{}", b"", bearer)))[0] == 400

    listed = server.management.get("/models", headers={"authorization": f"Bearer {token}"})
    assert listed.json() == {"models": []}
    assert statuses(converse(port, evil, last)) == [200, 200]


@pytest.mark.parametrize("role", ["inference", "management", "metrics"])
def test_a_client_that_ends_its_side(server, role):
    """Who only says that no more will come still gets the answers to what came, and then the end."""
    two = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2
    path = {"inference": b"/ping", "management": b"/models", "metrics": b"/metrics"}[role]
    one = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path

    assert statuses(converse(server.port_of(role), one, half_close=True))[-1] == 200
    answers = statuses(converse(server.port, two, half_close=True))
    assert [code for code in answers if code != 102] == [200, 200]


def test_a_client_that_waits_for_a_slow_answer(either):
    """The server checks meanwhile whether it is still connected, and it is."""
    received = converse(
        either.port,
        post(b"/predictions/obey", b'{"do": "sleep", "seconds": 0.5, "token": "here"}'),
        half_close=True,
    )

    assert statuses(received) == [102, 200]
    assert b"here" in received


def test_clients_that_leave_without_reading(either):
    """A client that sends requests, reads nothing and disconnects is soon forgotten by the server, too."""
    one = post(b"/predictions/echo", b"n" * 1_000_000)
    with contextlib.ExitStack() as stack:
        stubborn = [stack.enter_context(connect(either.port)) for _ in range(2)]
        for connection in stubborn:
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                connection.sendall(one * 10)
        sockets = either.sockets_to(stubborn)
        assert len(sockets) == 2

    wait_until(lambda: not sockets & either.sockets(), "they are gone", 5)


OTHER_ROUTES = {
    "inference": (b"POST /ping", b"POST /v2/repository/index", b"GET /v2/health/live", b"POST /nowhere"),
    "management": (
        *(b"POST /" + path for path in (b"models", b"workflows", b"v2/repository/index", b"recording")),
        *(b"POST /console/" + path for path in (b"estimate", b"try/predictions/echo")),
        *(b"PUT /" + path for path in (b"models/echo", b"models/echo/traffic", b"logging-level")),
        b"GET /models/echo",
    ),
    "metrics": (b"GET /metrics", b"POST /metrics", b"POST /ping", b"POST /nowhere"),
}


@pytest.mark.parametrize("role", OTHER_ROUTES)
def test_a_client_that_leaves_in_mid_body(either, role):
    """No error is reported for it, on any route."""
    before, logged = either.metric("Requests5XX"), len(either.home.log())
    with contextlib.ExitStack() as stack:
        clients = []
        for route in (b"POST /predictions/echo", *OTHER_ROUTES[role]) * 2:
            method, path = route.split()
            clients.append(stack.enter_context(connect(either.port_of(role))))
            clients[-1].sendall(post(path, b"{}" + b" " * 97, JSON).replace(b"POST", method, 1)[:-98])
        sockets = either.sockets_to(clients)
        for client in clients[: len(clients) // 2]:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not sockets & either.sockets(), "they are gone")

    assert either.metric("Requests5XX") == before
    reply = either.home.log()[logged:]
    assert "ERROR" not in reply, reply
    assert "Traceback" not in either.home.log("model_log.log") + reply


def upload(server, body, announced):
    """One connection, as `curl -T` makes it; an announced length above the body's breaks it off."""
    with connect(server.port) as connection:
        connection.sendall(
            post(b"/predictions/echo", body).replace(b"%d\r\n\r\n" % len(body), b"%d\r\n\r\n" % announced, 1)
        )
        while announced == len(body) and not connection.recv(1 << 20).endswith(body[-16:]):
            pass


@pytest.mark.parametrize("ending", ["answered", "broken off"])
def test_bodies_do_not_stay(either, ending):
    """However uploads end, the memory of their bodies is the system's again within 5 s."""
    body = b"0123456789abcdef" * (SIZE // 16)
    announced = len(body) + (ending == "broken off")
    for _ in range(5):
        upload(either, body, announced)
    before = either.memory()
    for _ in range(15):
        upload(either, body, announced)

    wait_until(lambda: either.memory() < 1.1 * before, f"back to {before} from {either.memory()}", 5)


def test_bodies_that_come_in_are_bounded_together(start_server):
    """One large body has room in each process. Further ones are refused with a hint to retry, and
    there is room again when it has arrived or its client has left (F31).
    """
    limits = {"max_incoming_bytes": 1, "max_request_size": 1_000_000}
    server = start_server(**limits, frontend_processes=2).registered("echo.mar")
    whole = post(b"/predictions/echo", b"b" * 900_000)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(6)]
        for client in clients:
            client.sendall(whole[:700_000])
        wait_until(lambda: len(readable(clients)) >= len(clients) - 2, "those beyond are answered")
        refused = readable(clients)
        assert {statuses(client.recv(65536))[0] for client in refused} == {503}
        held = [client for client in clients if client not in refused]
        held[0].sendall(whole[700_000:])
        assert statuses(held[0].recv(65536))[0] == 200

    wait_until(lambda: server.predict("echo", b"b" * 900_000).status_code == 200, "there is room")


def readable(connections):
    return select.select(connections, [], [], 0)[0]


def test_bodies_that_were_held_at_once_do_not_stay(either):
    """Forty clients that break off together leave nothing behind either, in each process by itself (F31)."""
    either.predict("echo", b"warm")
    before = [each.memory_info().rss for each in either.processes()]
    part = post(b"/predictions/echo", b"b" * SIZE)[: SIZE * 3 // 4]
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(connect(either.port))
            client.sendall(part)

    def back():
        now = [each.memory_info().rss for each in either.processes()]
        return all(new < 1.1 * old for new, old in zip(now, before, strict=True))

    wait_until(back, f"back to {before}", 5)


@pytest.mark.slow  # compiles a program of Java
@pytest.mark.skipif(not shutil.which("javac"), reason="Java is not installed")
def test_java_client_is_served(server):
    """Java's own client, which offers HTTP/2 with its first request, is served like any other."""
    program = Path(__file__).with_name("UpgradingClient.java")
    bases = [f"http://127.0.0.1:{server.port_of(role)}" for role in ("inference", "management", "metrics")]
    ran = subprocess.run(["java", program, *bases], capture_output=True, text=True, timeout=100, check=False)

    assert ran.stdout.splitlines() == [
        "known length: 200 HTTP_1_1 one",
        "same connection: 200 HTTP_1_1 two",
        "chunked: 200 HTTP_1_1 3000000",
        "no body: 200 HTTP_1_1 {",
        '  "status": "Healthy"',
        "}",
        "management: 200",
        "metrics: 200 true",
        "at once: 200",
    ], ran.stdout + ran.stderr
