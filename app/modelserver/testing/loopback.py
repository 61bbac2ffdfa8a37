"""A request and its response without a socket: the bytes of the response are read where they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import httptools

from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Target
from modelserver.testing.answer import Answer

if TYPE_CHECKING:
    from modelserver.surface.http.cors import Cors

_VERSION = "1.1"


class Loopback:
    """Takes the place of a connection and of its transport, for one exchange.

    ``ended`` gets the answer.
    """

    cors: Cors | None = None

    def __init__(self, ended: asyncio.Future[Answer]) -> None:
        self.transport = self
        self._ended = ended
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._complete = False
        self._parser = httptools.HttpResponseParser(self)

    def exchange(
        self, target: Target, body: bytes, headers: Iterable[tuple[bytes, bytes]], method: bytes = b"POST"
    ) -> ConnectionExchange:
        """The exchange, whose body is complete."""
        lines = [*headers, (b"content-length", b"%d" % len(body))]
        exchange = ConnectionExchange(self, target, method, _VERSION, lines, keep_alive=True)
        exchange.receive(body)
        exchange.complete()
        return exchange

    # -- the connection

    def finish(
        self, exchange: ConnectionExchange, status: int, answer: bytes, body: bytes = b"", *, keep: bool
    ) -> None:
        """Reads the rest of the answer, which is then delivered."""
        self.write(answer)
        self.write(body)
        if not self._ended.done():
            chunked = "transfer-encoding" in self._headers
            self._ended.set_result(
                Answer(
                    self._parser.get_status_code(),
                    self._headers,
                    b"".join(self._parts),
                    tuple(self._parts) if chunked else (),
                    self._complete,
                )
            )

    # -- its transport

    def write(self, data: bytes) -> None:
        if data:
            self._parser.feed_data(data)

    def is_closing(self) -> bool:
        """It is open until the response ends."""
        return False

    def get_write_buffer_size(self) -> int:
        """Nothing waits to be read."""
        return 0

    def abort(self) -> None:
        """The response has ended without its end."""

    # -- the parser's events

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._complete = True
