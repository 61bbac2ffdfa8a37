import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.surface.http.test_asgi_cycle import answering, start
from tests.surface.http.wire import CHUNKED, Wire, application, chunk, head

from modelserver.errors import MethodNotAllowed
from modelserver.surface.http.edge import Edge


@dataclass
class Call:
    """One request through an edge whose limit is 100 bytes: its response, and what is reported of it."""

    status: int
    headers: dict[str, str]
    body: bytes
    reported: list[Any]

    @property
    def error(self):
        return json.loads(self.body)


async def call(app, *lines: str, path: str = "/x", body: bytes = b"") -> Call:
    reported: list[Any] = []
    wire = Wire(Edge(app, lambda *response: reported.append(response), 100))
    await wire.talk(head(*(lines or ["Content-Length: 0"]), path=path) + body)
    block, _, content = wire.transport.written.partition(b"\r\n\r\n")
    first, *rest = block.decode().split("\r\n")
    return Call(int(first.split()[1]), dict(line.split(": ", 1) for line in rest), content, reported)


def failing(error: Exception, *first):
    """An application that sends these messages and raises an error."""

    async def app(scope, receive, send) -> None:
        await answering(*first)(scope, receive, send)
        raise error

    return app


async def test_every_response_has_the_headers_of_all_and_is_reported_with_its_query():
    result = await call(answering(start(200, (b"x-own", b"1")), {}), path="/models/?q=1")
    [(*request, seconds, request_id)] = result.reported

    assert result.headers["x-own"] == "1"
    assert result.headers["x-request-id"] == request_id
    assert len(request_id) == 36
    assert result.headers["pragma"] == "no-cache"
    assert result.headers["x-content-type-options"] == "nosniff"
    assert request == ["127.0.0.1:5000", "POST", "/models/?q=1", "1.1", 200]
    assert seconds >= 0


@pytest.mark.parametrize(("request_id", "is_usable"), [("mine", True), ("two\twords", False)])
async def test_request_id_of_the_client_is_used(request_id, is_usable):
    """It is used if it is valid, and replaced if not (F13)."""
    result = await call(application, f"X-Request-ID: {request_id}")

    assert (result.headers["x-request-id"] == request_id) == is_usable
    assert is_usable or len(result.headers["x-request-id"]) == 36


async def test_slashes_at_the_end_of_a_path_do_not_count():
    seen: list[str] = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["path"])
        await application(scope, receive, send)

    for path in ("/models//", "/", "//"):
        await call(app, path=path)

    assert seen == ["/models", "/", "//"]


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (CHUNKED, chunk(b"x" * 101) + b"0\r\n\r\n"),
        (CHUNKED, chunk(b"x" * 60) + chunk(b"x" * 41) + b"0\r\n\r\n"),
        ("Content-Length: 101", b"x"),
    ],
    ids=["at once", "in pieces", "announced"],
)
async def test_body_above_the_limit_gets_413(line, body):
    """In JSON, also when it was not announced (F5)."""
    result = await call(application, line, body=body)

    assert (result.status, result.error["type"]) == (413, "RequestEntityTooLargeException")
    assert "max_request_size=100" in result.error["message"]


async def test_error_that_leaves_the_application_becomes_its_response(caplog):
    result = await call(failing(MethodNotAllowed("GET")), path="/v2/models")
    unknown = await call(failing(RuntimeError("/secret/path")))

    assert (result.status, result.headers["allow"]) == (405, "GET")
    assert result.error["error"] == result.error["message"]
    assert unknown.status == 500
    assert b"secret" not in unknown.body
    assert "/secret/path" in caplog.text


async def test_error_within_a_response_starts_no_second_one():
    result = await call(failing(RuntimeError("broke off"), start(200)))

    assert (result.status, result.body) == (200, b"")
    assert result.reported[0][4] == 200


async def test_other_protocols_are_ignored():
    sent: list[Any] = []
    send: Callable[[Any], Any] = sent.append
    await Edge(application, lambda *_: None, 100)({"type": "websocket"}, None, send)  # type: ignore[arg-type]

    assert sent == []
