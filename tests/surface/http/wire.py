"""A connection whose client and endpoint are a test."""

import asyncio
import re

import pytest
from starlette.types import ASGIApp
from tests.transports import Transport

from modelserver.surface.http.connection import HttpListener
from modelserver.surface.http.exchange import Exchange, Target, read_target
from modelserver.surface.http.protocol import HttpProtocol

LIMIT = 1000
CHUNKED = "Transfer-Encoding: chunked"
# With an endpoint of its own, and by the application.
BOTH_WAYS = pytest.mark.parametrize("path", ["/hot", "/cold"])


class Hot:
    """Routes under /hot; keeps the exchanges for the test to answer, or answers with their bodies at once."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.at_once = True

    def find(self, url: bytes) -> Target | None:
        target = read_target(url)
        return target if target is not None and target.path.startswith(("/hot", "/v1")) else None

    def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if exchange.target.path == "/hot/bug":
            raise ZeroDivisionError
        if self.at_once:
            exchange.reply(200, exchange.body)


async def application(scope, receive, send) -> None:
    """Answers with the body it got; under /early and, with 404, /none before it has come."""
    body, more = b"", scope["path"] not in {"/early", "/none"}
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    status, length = 404 if scope["path"] == "/none" else 200, (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Wire:
    """A connection under test, with the application and its listener's attributes."""

    def __init__(
        self,
        app: ASGIApp = application,
        *,
        listener: HttpListener | None = None,
        half_closes: bool = True,
        **attributes,
    ) -> None:
        self.hot = Hot()
        self.responses: list[tuple[str, str, bytes, str, int]] = []
        times = {"receive_timeout": 10.0, "send_timeout": 20.0, "keep_alive": 20.0}
        self.listener = listener or HttpListener(
            app, self.hot, LIMIT, lambda *response: self.responses.append(response[:5]), **times, **attributes
        )
        self.protocol = HttpProtocol(self.listener)
        self.transport = Transport(half_closes=half_closes)
        self.protocol.connection_made(self.transport)
        self.connection = self.protocol._connection

    @property
    def statuses(self) -> list[int]:
        return [int(line) for line in re.findall(rb"HTTP/1\.1 (\d+) ", self.transport.written)]

    @property
    def is_ending(self) -> bool:
        return self.transport.closed or self.transport.ended

    def send(self, *pieces: bytes) -> bytes:
        """Receives the pieces; returns what was written in answer to them."""
        before = len(self.transport.written)
        for piece in pieces:
            self.protocol.data_received(piece)
        return self.transport.written[before:]

    async def talk(self, *pieces: bytes) -> None:
        """Receives the pieces, and lets the application respond."""
        self.send(*pieces)
        await settle()


def head(*lines: str, path: str = "/hot", method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def post(body: bytes = b"", path: str = "/hot") -> bytes:
    return head(f"Content-Length: {len(body)}", path=path) + body


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
