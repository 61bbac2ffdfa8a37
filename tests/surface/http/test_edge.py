from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from modelserver.errors import MethodNotAllowed
from modelserver.surface.http.edge import Edge

Headers = list[tuple[bytes, bytes]]


class Call:
    """One request through an edge, and what it said of it."""

    def __init__(
        self, *body: bytes, path: str = "/x", headers: Headers | None = None, version: str = "1.1"
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"q=1",
            "http_version": version, "client": ("10.0.0.1", 99), "headers": headers or [],
        }  # fmt: skip
        self._body = list(body) or [b""]
        self.sent: list[dict[str, Any]] = []
        self.told: list[tuple[Any, ...]] = []

    async def receive(self) -> dict[str, Any]:
        piece = self._body.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._body)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, app: Any, limit: int = 100) -> Call:
        await Edge(app, lambda *said: self.told.append(said), limit)(self.scope, self.receive, self.send)  # type: ignore[arg-type]
        return self

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> Any:
        return json.loads(b"".join(message.get("body", b"") for message in self.sent))


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and says how long it was."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": b"%d" % size})


async def test_headers_of_every_answer() -> None:
    """Each answer gets a request id and no-cache headers beside its own."""
    call = await Call(b"abc").run(answer)

    assert call.status == 200
    assert call.headers[b"x-own"] == b"1"
    assert len(call.headers[b"x-request-id"]) == 36
    assert call.headers[b"pragma"] == b"no-cache"
    assert call.headers[b"x-content-type-options"] == b"nosniff"


async def test_request_id_of_the_client() -> None:
    """A usable id of the client is kept, another is replaced (F13)."""
    kept = await Call(headers=[(b"x-request-id", b"mine")]).run(answer)
    replaced = await Call(headers=[(b"x-request-id", b"two\twords")]).run(answer)

    assert kept.headers[b"x-request-id"] == b"mine"
    assert len(replaced.headers[b"x-request-id"]) == 36


async def test_log_line() -> None:
    """The log is told who asked for what and got which status, with the query."""
    call = await Call(path="/models/").run(answer)

    client, method, target, version, status, seconds, request_id = call.told[0]
    assert (client, method, target, version, status) == ("10.0.0.1:99", "POST", "/models/?q=1", "1.1", 200)
    assert 0 <= seconds < 5
    assert request_id


async def test_trailing_slashes() -> None:
    """Slashes at the end of a path do not count; of paths of slashes only `/` is the root."""
    seen: list[str] = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await answer(scope, receive, send)

    for path in ("/models//", "/", "//"):
        await Call(path=path).run(look)

    assert seen == ["/models", "/", "//"]


@pytest.mark.parametrize("body", [[b"x" * 101], [b"x" * 60, b"x" * 41]], ids=["at once", "in pieces"])
async def test_body_over_the_limit(body: list[bytes]) -> None:
    """A body over the limit is 413 in JSON, also when it was not announced (F5)."""
    call = await Call(*body).run(answer)

    assert (call.status, call.body["type"]) == (413, "RequestEntityTooLargeException")
    assert "max_request_size=100" in call.body["message"]


async def test_announced_body_over_the_limit() -> None:
    """A body announced over the limit is refused at its first byte."""
    assert (await Call(b"x", headers=[(b"content-length", b"101")]).run(answer)).status == 413


async def test_known_error() -> None:
    """An error of ours that leaves the application is rendered with its headers."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        raise MethodNotAllowed("GET")

    call = await Call(path="/v1/models").run(refuse)

    assert call.status == 405
    assert call.headers[b"allow"] == b"GET"
    assert call.body["error"] == call.body["message"]


async def test_unknown_error(caplog: pytest.LogCaptureFixture) -> None:
    """Any other error is 500 without a word of its text; the log has it."""

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("/secret/path")

    with caplog.at_level(logging.ERROR):
        call = await Call().run(fail)

    assert call.status == 500
    assert "secret" not in str(call.sent)
    assert "/secret/path" in caplog.text


async def test_error_after_the_answer_began(caplog: pytest.LogCaptureFixture) -> None:
    """An error in the middle of an answer begins no second one."""

    async def break_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broke off")

    call = await Call().run(break_off)

    assert [message["type"] for message in call.sent] == ["http.response.start"]
    assert call.told[0][4] == 200


async def test_other_protocols() -> None:
    """What is no HTTP request is passed over."""
    call = Call()
    call.scope["type"] = "websocket"

    assert (await call.run(answer)).sent == []
