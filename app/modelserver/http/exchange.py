"""One request of inference and the way to answer it, whatever brought it.

Inference is most of what the server does, so its requests take a short way: no task, no ASGI messages, one
look at each header, one write per answer. Everything else goes through the ASGI application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import httptools

from modelserver.http.answers import JSON, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.errors import ModelServerError


# Bytes of an answer in parts that may wait for a client that reads slowly: as many as a whole answer may have
# by default (max_response_size).
MAX_UNSENT = 6_553_500


@dataclass(frozen=True, slots=True)
class Target:
    """What the first line of a request names: ``path`` is decoded, ``text`` as it was sent.

    ``route`` is the endpoint's own.
    """

    path: str
    query: bytes
    text: str
    route: Any = None


def read_target(url: bytes) -> Target | None:
    """The parts of a URL as it stands in the first line, or None if it is none."""
    try:
        parsed = httptools.parse_url(url)
        path = parsed.path.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
        return None
    query = parsed.query or b""
    text = f"{path}?{query.decode('latin-1')}" if query else path
    return Target(unquote(path) if "%" in path else path, query, text)


class Exchange(ABC):
    """A request whose body is complete when the endpoint sees it, and its answer.

    It is answered by exactly one :meth:`reply`, or in parts by :meth:`begin`, :meth:`send` and :meth:`end`.

    ``encoding`` is that of the body, ``deadline_ms`` the client's own (0: none), ``request_id`` the client's
    or a new one. ``on_disconnect`` is called if the client leaves before the end of the answer. ``answered``:
    an answer was given or begun. ``begun`` is the status of an answer in parts between :meth:`begin` and
    :meth:`end`, otherwise 0.
    """

    __slots__ = (
        "answered",
        "begun",
        "body",
        "content_type",
        "deadline_ms",
        "disconnected",
        "encoding",
        "http_version",
        "method",
        "on_disconnect",
        "request_id",
        "target",
    )

    def __init__(self, target: Target, method: bytes, http_version: str, body: bytes = b"") -> None:
        self.target = target
        self.method = method
        self.http_version = http_version
        self.body = body
        self.content_type = ""
        self.encoding = b""
        self.deadline_ms = 0
        self.request_id = ""
        self.answered = self.disconnected = False
        self.begun = 0
        self.on_disconnect: Callable[[], None] | None = None

    def __str__(self) -> str:
        """Method and route, without the names in it."""
        return f"{self.method.decode()} {self.target.route.template}"

    @property
    @abstractmethod
    def headers(self) -> list[tuple[bytes, bytes]]:
        """(name, value) as the client wrote them."""

    @abstractmethod
    def packed_headers(self) -> bytes:
        """``headers`` in msgpack, as workers get them."""

    @abstractmethod
    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        """Gives the whole answer. ``extra`` are further header lines, each with its line end.

        As in TorchServe, an answer of 400 and above closes the connection.
        """

    @abstractmethod
    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        """Begins an answer that comes in parts; the arguments are those of :meth:`reply`."""

    @abstractmethod
    def send(self, part: bytes) -> None:
        """Gives one part; nothing for one without bytes.

        What the client has not taken may be ``MAX_UNSENT`` bytes: a part that comes on top of more ends the
        connection, and ``on_disconnect`` is called, as for a client that leaves.
        """

    @abstractmethod
    def end(self, complete: bool = True) -> None:
        """Ends an answer in parts; if it is not ``complete``, the connection, without the last chunk.

        That counts as an answer of 500, which the client cannot be told any more.
        """

    @abstractmethod
    def unsent(self) -> int:
        """The bytes that the client has not taken yet, as far as that is known here."""

    def fail(
        self,
        error: ModelServerError,
        *,
        kserve: bool = False,
        extra: bytes = b"",
        batch_id: str | None = None,
    ) -> None:
        """Answers with an error; see :func:`error_body`."""
        status, body = error_body(error, kserve=kserve, batch_id=batch_id)
        for name, value in error.headers:
            extra += name + b": " + value + b"\r\n"
        self.reply(status, body, JSON, extra)


class HotRoutes(Protocol):
    """The endpoint of the short way."""

    def find(self, url: bytes) -> Target | None:
        """What a URL asks for if requests for it take the short way."""
        ...

    def serve(self, exchange: Exchange) -> None:
        """Answers the exchange, now or later."""
        ...
