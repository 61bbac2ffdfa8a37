"""What becomes of a request, for whoever wants to know: one interface for REST and gRPC.

A :data:`Watch` is called with each request and returns a :class:`Watcher` of it, or None. Without a watch, a
request costs one comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request

_log = logging.getLogger("modelserver.api")

Result = TypeVar("Result")


class Watched(Protocol):
    """A request that is watched. ``str`` of it is its method and route, without the names in it.

    ``method`` is that of HTTP, or ``gRPC`` if it ``is_rpc``; ``target`` is a
    :class:`~modelserver.surface.http.exchange.Target`, whose route names model and version. ``started`` is
    when it arrived (monotonic), 0 where that is not known; ``deadline_ms`` is 0 without one. ``code`` is the
    status of a call over gRPC that has ended, None for HTTP.
    """

    method: bytes
    is_rpc: bool
    target: Any
    content_type: str
    request_id: str
    started: float
    has_traceparent: bool
    deadline_ms: int
    code: int | None

    @property
    def body(self) -> bytes:
        """The body for the handler: inflated, once it is queued. Over gRPC the message."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """(name, value) as the client sent them."""

    def attributes(self) -> dict[str, str | int]:
        """Method and route by OpenTelemetry's names."""

    def replace_header(self, name: bytes, value: bytes) -> None:
        """Whoever reads the headers from now on finds this value; ``name`` is in lower case."""

    def note_trace(self, trace_id: str, note: Callable[[str, str], None]) -> None:
        """Reports the trace of the answer to the access log, by request id; just before the answer ends."""

    def framed(self, part: bytes) -> bytes:
        """The answer, or a part of it, as it is sent: messages of gRPC follow their length."""

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The whole answer of these parts."""


class Watcher:
    """Learns what becomes of one request: it is queued, then answered, or its client leaves.

    The last call is :meth:`replied`, :meth:`ended` or :meth:`left`. ``lines`` are header lines, each with its
    line end: about batch and timing, then the handler's. By itself, a watcher does nothing.
    """

    __slots__ = ()

    def queued(self, request: Request, model: Any) -> None:
        """It is about to be queued for this version of a model; for a workflow, at each node."""

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        """The whole answer. Over gRPC, the status is the one of HTTP with the same meaning, and an answer in
        parts may end like this, when the request fails.
        """

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        """The beginning of an answer in parts."""

    def part(self, part: bytes) -> None:
        """A part of the answer; over gRPC a message."""

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        """The end of an answer in parts; ``lines`` came after them."""

    def left(self) -> None:
        """The client has disconnected before the end of the answer."""

    def beside(self, other: Watcher) -> Watcher:
        """Both as one."""
        return Watchers((self, other))


Watch: TypeAlias = "Callable[[Any], Watcher | None]"
"""From a request (:class:`Watched`) that has arrived to its watcher, if it is watched."""


class Watchers(Watcher):
    """The watchers of one request. A failure of one is logged, and reaches neither request nor the others."""

    __slots__ = ("_watchers",)

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def queued(self, request: Request, model: Any) -> None:
        for watcher in self._watchers:
            _guarded(watcher.queued, request, model)

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        for watcher in self._watchers:
            _guarded(watcher.replied, status, body, content_type, lines)

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        for watcher in self._watchers:
            _guarded(watcher.started, status, content_type, lines)

    def part(self, part: bytes) -> None:
        for watcher in self._watchers:
            _guarded(watcher.part, part)

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        for watcher in self._watchers:
            _guarded(watcher.ended, complete, lines)

    def left(self) -> None:
        for watcher in self._watchers:
            _guarded(watcher.left)


def joined(watches: Iterable[Watch]) -> Watch | None:
    """All of these as one; None if there are none."""
    several = tuple(watches)
    if not several:
        return None

    def watch(request: Watched) -> Watcher | None:
        watchers = [watcher for each in several if (watcher := _guarded(each, request)) is not None]
        return Watchers(watchers) if watchers else None

    return watch


def _guarded(act: Callable[..., Result], *arguments: Any) -> Result | None:
    """Calls what a watch or a watcher does; None if it fails."""
    try:
        return act(*arguments)
    except Exception:  # noqa: BLE001 - the request goes on
        _log.exception("A watcher of a request failed: %r", act)
        return None
