"""A request of the ASGI application on its connection: what the application receives, and what it sends.

Everything but inference goes this way: management, metrics, pages and documents. uvicorn prepares the
application (:func:`prepared`); requests and responses are read and written here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from uvicorn import Config

from modelserver.surface.http.answers import status_line
from modelserver.surface.http.exchange import Target
from modelserver.surface.http.head import announced_length
from modelserver.surface.http.sockets import Addresses

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope


_log = logging.getLogger("modelserver.api")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Bytes of a body that wait for the application; no more is read until it takes them.
_MOST_WAITING = 1 << 16
# What may not stand in the name of a header (RFC 9110, 5.6.2), and in its value.
_NO_NAME = re.compile(rb'[\x00-\x20\x7f"(),/:;<=>?@\[\\\]{}]')
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FAILED = b"Internal Server Error"


def prepared(app: Any) -> ASGIApp:
    """The application as uvicorn calls it: what proxies on this machine say of a client is believed."""
    # `http` is named so that uvicorn does not look for parsers of its own.
    config = Config(
        app, http=asyncio.Protocol, ws="none", loop="none", lifespan="off", log_config=None, access_log=False
    )
    config.load()
    loaded: ASGIApp = config.loaded_app
    return loaded


class AsgiConnection(Protocol):
    """The connection of such a request."""

    transport: asyncio.Transport
    addresses: Addresses

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    async def writable(self) -> None:
        """Waits until the client has read enough of what was written."""

    def write(self, data: bytes) -> None:
        """Writes a part of the response."""

    def close_gently(self) -> None:
        """Closes after the client had a chance to read the response."""

    def responded(self) -> None:
        """The response is written."""


@final
class AsgiCycle:
    """One request for the application, and its response.

    ``announced``: the content length, 0 without one. ``more_body``: the body is not complete. ``received``:
    bytes of it so far. ``sent_status``: that of the response, 0 until its head is written;
    ``response_complete``: all of it is. ``keep_alive``: the connection stays open behind it.
    ``disconnected``: nothing more of it is written.
    """

    def __init__(  # noqa: PLR0917 - those of an exchange
        self,
        connection: AsgiConnection,
        target: Target,
        method: bytes,
        http_version: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.target = target
        self.method = method
        self.http_version = http_version
        self.headers = [(name.lower(), value) for name, value in headers]
        self.announced = announced_length(self.headers)
        self.keep_alive = keep_alive
        self._waits_for_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )
        self.more_body = True
        self.sent_status = 0
        self.response_complete = self.disconnected = False
        self.received = 0
        self._body = bytearray()
        self._news = asyncio.Event()
        # The response comes in chunks; None: the application has not said so, or how long its body is.
        self._chunked: bool | None = None
        self._unwritten = 0

    # -- from the connection

    def receive(self, piece: bytes) -> None:
        """Adds a piece of the body; after the response nobody needs it."""
        if self.response_complete:
            return
        self.received += len(piece)
        self._body += piece
        if len(self._body) > _MOST_WAITING:
            self._connection.pause_reading()
        self._news.set()

    def complete(self) -> None:
        """The body is complete."""
        if not self.response_complete:
            self.more_body = False
            self._news.set()

    def leave(self) -> None:
        """The client is gone, or was refused: what the application still sends is dropped."""
        if not self.response_complete:
            self.disconnected = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        """Has the application respond."""
        try:
            await app(self._scope(), self._receive, self._send)
        except Exception:  # noqa: BLE001 - the last place where an error becomes a response
            _log.exception("Exception in ASGI application")
        else:
            if self.response_complete or self.disconnected:
                return
            _log.error(
                "ASGI callable returned without %s response.",
                "completing" if self.sent_status else "starting",
            )
        if self.sent_status:
            self._connection.close_gently()
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAILED))]
        await self._send({"type": "http.response.start", "status": 500, "headers": headers})
        await self._send({"type": "http.response.body", "body": _FAILED})

    # -- ASGI

    def _scope(self) -> Scope:
        addresses, target = self._connection.addresses, self.target
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.http_version,
            "server": addresses.server,
            "client": addresses.client,
            "scheme": addresses.scheme,
            "method": self.method.decode("ascii"),
            "root_path": "",
            "path": target.path,
            "raw_path": target.text.partition("?")[0].encode("ascii"),
            "query_string": target.query,
            "headers": self.headers,
            "state": {},
        }

    async def _receive(self) -> Message:
        connection = self._connection
        if self._waits_for_continue and not connection.transport.is_closing():
            connection.transport.write(CONTINUE)
            self._waits_for_continue = False
        if not (self.disconnected or self.response_complete):
            connection.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _send(self, message: Message) -> None:
        if not self.disconnected:
            await self._connection.writable()
        if self.disconnected:
            return
        expected = "http.response.body" if self.sent_status else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}'.")
        if self.sent_status:
            self._write_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._write_head(message["status"], message.get("headers", ()))

    def _write_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if _NO_NAME.search(name) or _NO_VALUE.search(value):
                raise RuntimeError(f"Invalid HTTP header {name!r}.")
        self.sent_status = status
        self._waits_for_continue = False
        parts = [status_line(status)]
        for name, value in ((name.lower(), value) for name, value in headers):
            if name == b"content-length" and self._chunked is None:
                self._unwritten = int(value)
                self._chunked = False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self._unwritten = 0
                self._chunked = True
            parts += (name, b": ", value, b"\r\n")
        # As in TorchServe, a status of 400 or more closes the connection.
        self.keep_alive = self.keep_alive and status < 400
        parts.append(b"connection: keep-alive\r\n" if self.keep_alive else b"connection: close\r\n")
        if self._chunked is None and self.method != b"HEAD" and status not in {204, 304}:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        self._connection.write(b"".join(parts))

    def _write_body(self, body: bytes, *, more: bool) -> None:
        if self.method == b"HEAD":
            self._unwritten = 0
        elif self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._connection.write(chunk if more else chunk + b"0\r\n\r\n")
        else:
            if len(body) > self._unwritten:
                raise RuntimeError("The response is longer than its content length.")
            self._unwritten -= len(body)
            self._connection.write(body)
        if more:
            return
        if self._unwritten:
            raise RuntimeError("The response is shorter than its content length.")
        self.response_complete = True
        self._news.set()
        if not self.keep_alive:
            self._connection.close_gently()
        self._connection.responded()
