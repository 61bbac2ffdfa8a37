"""One inference request and the way to answer it, wherever it came from.

Most requests are for inference, so these take a fast path: no task, no ASGI messages, one look at each
header, one write per answer. Everything else goes through the ASGI application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import parse_qsl, unquote

import httptools

from modelserver.errors import BadRequest, ModelServerError
from modelserver.surface.http.answers import JSON, error_body, form_of

if TYPE_CHECKING:
    from modelserver.surface.watching import Watcher


# Bytes of an answer in parts that may wait for a slow client: the default limit of a whole answer
# (max_response_size).
MAX_UNSENT = 6_553_500
# Parameters of a query: more are useless and take long.
MAX_PARAMETERS = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """The URL of a request: ``path`` is decoded, ``text`` as sent; ``route`` belongs to the endpoint.

    The defaults are those of a request whose URL is not read.
    """

    path: str = ""
    query: bytes = b""
    text: str = "-"
    route: Any = None


def read_target(url: bytes) -> Target | None:
    """The parts of a URL from a request's first line; None if it is not a URL."""
    try:
        parsed = httptools.parse_url(url)
        path = parsed.path.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
        return None
    query = parsed.query or b""
    text = f"{path}?{query.decode('latin-1')}" if query else path
    return Target(unquote(path) if "%" in path else path, query, text)


def read_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values of a URL's query, empty ones too. Raises BadRequest for too many."""
    check_query(query)
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def check_query(query: bytes) -> None:
    """Raises BadRequest for too many parameters."""
    count = query.count(b"&")
    if count >= MAX_PARAMETERS:
        raise BadRequest(f"The query has {count + 1} parameters, {MAX_PARAMETERS} are allowed.")


class Exchange(ABC):
    """A request whose body is complete when the endpoint gets it, and its answer.

    It is answered by exactly one :meth:`reply`, or in parts by :meth:`begin`, :meth:`send` and :meth:`end`.

    ``encoding`` is the body's, ``deadline_ms`` the client's (0: none), ``request_id`` the client's or a
    new one. ``started``: when its head was there (monotonic), 0 where that is not known.
    ``has_traceparent``: ``headers`` has one. ``on_disconnect`` is called if the client
    disconnects before the end of the answer. ``answered``: an answer was sent, or its first part.
    ``sent_status`` is the status of an answer in parts between :meth:`begin` and :meth:`end`, otherwise 0.
    ``watcher`` learns what becomes of it; only exchanges of connections have one.
    """

    # See :class:`modelserver.surface.watching.Watched`.
    code: ClassVar[int | None] = None
    is_rpc: ClassVar[bool] = False

    __slots__ = (
        "_headers",
        "answered",
        "body",
        "content_type",
        "deadline_ms",
        "disconnected",
        "encoding",
        "has_traceparent",
        "http_version",
        "method",
        "on_disconnect",
        "request_id",
        "sent_status",
        "started",
        "target",
        "watcher",
    )

    def __init__(self, target: Target, method: bytes, http_version: str, body: bytes = b"") -> None:
        self.target = target
        self.method = method
        self.http_version = http_version
        self.body = body
        self.content_type = ""
        self.encoding = b""
        self.deadline_ms = 0
        self.started = 0.0
        self.request_id = ""
        self.has_traceparent = self.answered = self.disconnected = False
        self.sent_status = 0
        self.on_disconnect: Callable[[], object] | None = None
        self.watcher: Watcher | None = None

    def __str__(self) -> str:
        """Method and route, without the names in it."""
        return f"{self.method.decode()} {self.target.route.template}"

    def attributes(self) -> dict[str, str | int]:
        """Method and route by OpenTelemetry's names."""
        return {"http.request.method": self.method.decode(), "http.route": self.target.route.template}

    def framed(self, part: bytes) -> bytes:
        """HTTP sends it as it is."""
        return part

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The whole answer of these parts."""
        return b"".join(parts)

    @property
    @abstractmethod
    def headers(self) -> list[tuple[bytes, bytes]]:
        """(name, value) as the client sent them."""

    @abstractmethod
    def packed_headers(self) -> bytes:
        """``headers`` in msgpack, for workers."""

    def replace_header(self, name: bytes, value: bytes) -> None:
        """Whoever reads the headers from now on finds this value; ``name`` is in lower case."""
        self._headers = [*(header for header in self.headers if header[0].lower() != name), (name, value)]

    def note_trace(self, trace_id: str, note: Callable[[str, str], None]) -> None:
        """Tells the access log of this process, by request id, which trace the answer belongs to.

        To be called just before the answer ends.
        """
        note(self.request_id, trace_id)

    @abstractmethod
    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        """Sends the whole answer. ``extra`` are further header lines, each with its line end.

        As in TorchServe, a status of 400 or more closes the connection.
        """

    @abstractmethod
    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        """Begins an answer that comes in parts; the arguments are those of :meth:`reply`."""

    @abstractmethod
    def send(self, part: bytes) -> None:
        """Sends one part; an empty one is ignored.

        If more than ``MAX_UNSENT`` bytes wait for the client already, the connection is closed instead, and
        ``on_disconnect`` is called, as for a client that disconnects.
        """

    @abstractmethod
    def end(self, complete: bool = True) -> None:
        """Ends an answer in parts; if it is not ``complete``, closes the connection without the last chunk.

        That counts as an answer of 500, although the client got another status.
        """

    def leave(self) -> None:
        """The client has disconnected, or was refused."""
        self.disconnected = True
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.left()
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def _note_begin(self, status: int, content_type: str, extra: bytes) -> None:
        """An answer in parts begins."""
        self.answered = True
        self.sent_status = status
        if self.watcher is not None:
            self.watcher.started(status, content_type, extra)

    def _note_end(self, complete: bool) -> None:
        """It ends."""
        self.sent_status = 0
        self.on_disconnect = None
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.ended(complete)

    @abstractmethod
    def unsent(self) -> int:
        """The bytes that the client has not taken yet, as far as known here."""

    def fail(
        self, error: ModelServerError, *, form: str = "", extra: bytes = b"", batch_id: str | None = None
    ) -> None:
        """Answers with an error; see :func:`error_body`."""
        status, body = error_body(error, form=form, batch_id=batch_id)
        for name, value in error.headers:
            extra += name + b": " + value + b"\r\n"
        self.reply(status, body, JSON, extra)

    def refuse(self, error: ModelServerError) -> None:
        """Answers with an error in the form of the path; for what no endpoint has read."""
        self.fail(error, form=form_of(self.target.path, error))


class HotRoutes(Protocol):
    """The endpoint of the fast path."""

    def find(self, url: bytes) -> Target | None:
        """The target of a URL if its requests take the fast path."""

    def serve(self, exchange: Exchange) -> None:
        """Answers the exchange, now or later."""
