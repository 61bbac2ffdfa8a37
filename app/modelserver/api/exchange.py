"""One HTTP request on a hot route, and the way to answer it.

Inference is most of what the server does, so its requests take a short way: no task, no ASGI messages, one
write per answer. Everything else goes through the ASGI application.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from modelserver.api.answers import JSON, NO_CACHE_BLOCK, clean, error_body, status_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from modelserver.api.http_protocol import HttpProtocol
    from modelserver.errors import ModelServerError


class Exchange:
    """A request whose body is complete when the endpoint sees it; answered by exactly one :meth:`reply`.

    ``headers`` are (lower-case name, value); ``raw_headers`` keep the client's case. ``on_disconnect`` is
    called if the client leaves before the answer.
    """

    __slots__ = (
        "answered",
        "body",
        "cycle",
        "headers",
        "method",
        "on_disconnect",
        "path",
        "protocol",
        "query",
        "raw_headers",
        "request_id",
        "started",
    )

    def __init__(
        self,
        protocol: HttpProtocol,
        cycle: RequestResponseCycle,
        raw_headers: list[tuple[bytes, bytes]],
    ) -> None:
        scope = cycle.scope
        self.protocol = protocol
        self.cycle = cycle
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
        self.raw_headers = raw_headers
        self.body = b""
        self.request_id = ""
        self.started = time.perf_counter()
        self.answered = False
        self.on_disconnect: Callable[[], None] | None = None

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        """Writes the whole answer. ``extra`` are further header lines, each with its line end.

        As in TorchServe, an answer of 400 and above closes the connection.
        """
        if self.answered:
            return
        self.answered = True
        self.on_disconnect = None
        cycle = self.cycle
        keep = cycle.keep_alive and status < 400
        parts = [
            status_line(status, phrase),
            b"x-request-id: ",
            self.request_id.encode("latin-1"),
            b"\r\n",
            NO_CACHE_BLOCK,
            extra,
        ]
        if content_type:
            parts.append(b"content-type: %b\r\n" % clean(content_type).encode("latin-1", "replace"))
        if status != 204:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"connection: keep-alive\r\n\r\n" if keep else b"connection: close\r\n\r\n")
        # These have no body, whatever the handler returned: a client would take it for the next answer.
        if status not in (204, 304) and self.method != "HEAD":
            parts.append(body)
        self.protocol.finish(self, status, b"".join(parts), keep=keep)

    def fail(self, error: ModelServerError, *, kserve: bool = False, extra: bytes = b"") -> None:
        """Answers with an error."""
        status, body = error_body(error, kserve=kserve)
        for name, value in error.headers:
            extra += name + b": " + value + b"\r\n"
        self.reply(status, body, JSON, extra)
