"""The payload log of the hot routes, on an exchange of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.errors import BadRequest
from modelserver.ext.payloads.log import Bounds
from modelserver.ext.payloads.rest import LoggedExchange, LoggedRoutes
from modelserver.surface.inference.routes import Route

_HEADERS = [(b"content-type", b"text/plain"), (b"Ce-Id", b"7")]


class Log:
    """Keeps what it is given."""

    def __init__(self, mode: str = "all", body: int = 1000) -> None:
        self.requests, self.responses = mode != "response", mode != "request"
        self.bounds = Bounds(body=body)
        self.events: list[Any] = []
        self.too_large_ones = 0

    def put(self, event: Any) -> None:
        self.events.append(event)

    def drop(self, why: str) -> None:
        assert why == "too_large"
        self.too_large_ones += 1

    @property
    def told(self) -> list[tuple[str, bytes, str]]:
        """Kind, body and type of each event."""
        return [(e.kind.rpartition(".")[2], e.body, e.content_type) for e in self.events]


class Inner:
    """An exchange that notes what it is answered."""

    def __init__(self, path: str = "/predictions/m/1.0?key=1", route: Route | None = None) -> None:
        route = route or Route("m", "1.0")
        self.target = SimpleNamespace(path=path.partition("?")[0], text=path, route=route)
        self.method = b"POST"
        self.http_version = "1.1"
        self.headers = _HEADERS
        self.body = b"question"
        self.method = b"POST"
        self.http_version = "1.1"
        self.content_type = "text/plain"
        self.encoding = b""
        self.deadline_ms = 0
        self.request_id = "r"
        self.answered = False
        self.begun = 0
        self.on_disconnect: Any = None
        self.watcher = None
        self.said: list[Any] = []

    def packed_headers(self) -> bytes:
        return b"packed"

    def unsent(self) -> int:
        return 5

    def reply(self, status: int, body: bytes, *_: object) -> None:
        self.answered = True
        self.said.append((status, body))

    def begin(self, status: int, *_: object) -> None:
        self.answered, self.begun = True, status

    def send(self, part: bytes) -> None:
        self.said.append(part)

    def end(self, complete: bool = True) -> None:
        self.begun = 0
        self.said.append(complete)


class Routes:
    """Hot routes that do what a test says."""

    def __init__(self, act: Any) -> None:
        self.serve = act

    def find(self, url: bytes) -> Any:
        return url


def served(act: Any, log: Log | None = None, inner: Inner | None = None) -> tuple[Log, Inner]:
    """The log and the exchange after a request was served so."""
    log, inner = log or Log(), inner or Inner()
    routes = LoggedRoutes(Routes(act), log)  # type: ignore[arg-type]  # as much of it as is needed
    assert routes.find(b"/x") == b"/x"
    routes.serve(inner)  # type: ignore[arg-type]
    return log, inner


def test_request_and_answer() -> None:
    """Both are events of one id, and say model, version, path without its query, and batch."""

    def answer(exchange: LoggedExchange) -> None:
        assert (exchange.request_id, exchange.packed_headers(), exchange.unsent()) == ("r", b"packed", 5)
        exchange.reply(200, b"answer", "text/html", b"x-a: b\r\nx-batch-id: b-1\r\nx-batch-size: 2\r\n")

    log, inner = served(answer)

    assert inner.said == [(200, b"answer")]
    assert sorted(log.told) == [("request", b"question", "text/plain"), ("response", b"answer", "text/html")]
    assert {e.id for e in log.events} == {"7"}
    about = {"modelname": "m", "modelversion": "1.0", "path": "/predictions/m/1.0"}
    told = {e.kind.rpartition(".")[2]: e.about for e in log.events}
    assert told == {"request": about, "response": {**about, "batchid": "b-1"}}


def test_inflated_bodies() -> None:
    """What the routes make of a body is what is logged."""

    def inflate(exchange: LoggedExchange) -> None:
        exchange.body = b"inflated"

    assert served(inflate)[0].told == [("request", b"inflated", "text/plain")]


def test_failures_are_no_answers() -> None:
    """An error reaches the client and not the log; the request does."""
    log, inner = served(lambda exchange: exchange.fail(BadRequest("why")))

    assert inner.said[0][0] == 400
    assert [kind for kind, *_ in log.told] == ["request"]


def test_requests_of_routes_that_fail() -> None:
    """A failure of the routes is passed on, and the request is logged all the same."""
    log = Log()

    def fail(_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        served(fail, log)
    assert [kind for kind, *_ in log.told] == ["request"]


def test_answers_in_parts() -> None:
    """They are one event when they are whole; what broke off is none."""

    def answer(exchange: LoggedExchange, *, complete: bool = True) -> None:
        exchange.begin(200, "text/plain")
        exchange.send(b"a")
        exchange.send(b"b")
        exchange.end(complete)

    log, inner = served(answer)
    assert inner.said == [b"a", b"b", True]
    assert log.told[0] == ("response", b"ab", "text/plain")

    broken, _ = served(lambda exchange: answer(exchange, complete=False))
    assert [kind for kind, *_ in broken.told] == ["request"]

    large, _ = served(answer, Log(body=1))
    assert [kind for kind, *_ in large.told] == ["request"]
    assert large.too_large_ones == 1


def test_who_leaves() -> None:
    """What is to happen when the client leaves is known to the exchange that hears of it."""
    left = []

    def wait(exchange: LoggedExchange) -> None:
        exchange.on_disconnect = lambda: left.append(True)

    _, inner = served(wait)
    inner.on_disconnect()

    assert left == [True]


@pytest.mark.parametrize(
    ("route", "headers", "kind"),
    [
        (Route("m", protocol="v1"), [], "application/json"),
        (Route("m", protocol="v2"), [(b"Inference-Header-Content-Length", b"5")], "application/octet-stream"),
        (Route("m"), [], "application/octet-stream"),
    ],
)
def test_requests_without_a_type(route: Route, headers: list[tuple[bytes, bytes]], kind: str) -> None:
    """They have that of their protocol."""
    inner = Inner(route=route)
    inner.content_type, inner.headers = "", headers

    assert served(lambda _: None, inner=inner)[0].told == [("request", b"question", kind)]


def test_modes() -> None:
    """Only what is wanted is logged."""

    def answer(exchange: LoggedExchange) -> None:
        exchange.reply(200, b"answer", "text/html")

    assert [kind for kind, *_ in served(answer, Log("request"))[0].told] == ["request"]
    assert [kind for kind, *_ in served(answer, Log("response"))[0].told] == ["response"]
