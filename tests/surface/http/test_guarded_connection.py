"""The HTTP protocol where tokens are asked for: what is refused, when, and what it costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.transports import Transport

from modelserver.surface.auth.guard import Guard
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Fingerprint, Verifier
from modelserver.surface.http.connection import HttpProtocol, Listener
from modelserver.surface.http.cors import Cors
from modelserver.surface.http.exchange import read_target

if TYPE_CHECKING:
    from modelserver.surface.http.exchange import Exchange, Target

TOKEN = "Authorization: Bearer good-token"


class Wire:
    """A guarded connection; hot routes are under /hot and answer with their body when they are told to."""

    def __init__(self, cors: Cors | None = None) -> None:
        self.waiting: list[Exchange] = []
        self.called: list[str] = []
        self.told: list[tuple[str, str, int]] = []
        verifier = Verifier(lambda: 0.0)
        verifier.replace([Fingerprint.of(Scope.INFERENCE, "good-token")])
        guard = Guard(verifier, {"inference"}, ping_token=False)
        listener = Listener(
            self, 1000, lambda *said: self.told.append((said[1], said[2], said[4])), guard=guard, cors=cors
        )
        self.protocol = HttpProtocol(self._app, listener)
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    def find(self, url: bytes) -> Target | None:
        return read_target(url) if url.startswith(b"/hot") else None

    def serve(self, exchange: Exchange) -> None:
        self.waiting.append(exchange)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.called.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def send(self, data: bytes) -> bytes:
        before = len(self.transport.written)
        self.protocol.data_received(data)
        return self.transport.written[before:]


def head(*lines: str, path: str = "/hot", method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize("path", ["/hot", "/long", "/"])
async def test_no_token(wire: Wire, path: str) -> None:
    """Neither way in is taken; the answer comes with the head, and is logged with method and path (F64)."""
    answer = wire.send(head("Content-Length: 500", path=path))
    await asyncio.sleep(0)

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"InvalidKeyException" in answer
    assert b"\r\nx-request-id: " in answer
    assert wire.told == [("POST", path, 400)]
    assert wire.waiting == []
    assert wire.called == []
    assert wire.send(b"x" * 500 + head(TOKEN)) == b""


async def test_a_token(wire: Wire) -> None:
    """Both ways are open, request after request."""
    for _ in range(2):
        wire.send(head(TOKEN, "Content-Length: 1") + b"x")
        wire.waiting.pop().reply(200, b"y")
        wire.send(head(TOKEN, path="/long", method="GET"))
        await asyncio.sleep(0.01)
    assert wire.transport.written.count(b"HTTP/1.1 200") == 4
    assert wire.called == ["/long", "/long"]


async def test_open_paths(wire: Wire) -> None:
    """What needs no token passes without."""
    wire.send(head(path="/readyz", method="GET"))
    await asyncio.sleep(0.01)

    assert wire.called == ["/readyz"]


async def test_pipelined(wire: Wire) -> None:
    """A refused request behind a good one does not take its answer, and ends the connection after it."""
    assert wire.send(head(TOKEN, "Content-Length: 1") + b"x" + head("Content-Length: 0")) == b""
    wire.waiting.pop().reply(200, b"y")

    assert wire.transport.written.endswith(b"y")
    assert wire.transport.written.count(b"HTTP/1.1 ") == 1
    assert wire.transport.closed


async def test_targets_that_are_none(wire: Wire) -> None:
    """What cannot be read as a path needs a token as well."""
    assert b" 400 " in wire.send(head(path="http://:x", method="GET"))
    assert wire.called == []


async def test_preflights() -> None:
    """They pass where CORS is on, and nowhere else (reference 4.4)."""
    asked = head("Origin: https://a", "Access-Control-Request-Method: POST", method="OPTIONS")
    wire = Wire()
    assert b" 400 " in wire.send(asked)
    wire = Wire(Cors(((b"access-control-allow-origin", b"*"),)))
    assert wire.send(asked) == b""
    await asyncio.sleep(0.01)
    assert wire.called == ["/hot"]
    refused = wire.send(head())
    assert b" 400 " in refused
    assert refused.count(b"access-control-allow-origin: *\r\n") == 1


async def test_without_tokens_nothing_is_looked_at() -> None:
    """A listener without a guard has no more to do for a request than one comparison."""
    assert Listener(None, 0, lambda *_: None).guard is None
