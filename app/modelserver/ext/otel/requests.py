"""Traced requests over REST, and calls over gRPC."""

from __future__ import annotations

import time
from typing import Any, Protocol

from opentelemetry.sdk.trace import Event
from opentelemetry.trace import SpanContext, SpanKind, Status

from modelserver.ext.otel.language import LanguageCall, language_call
from modelserver.ext.otel.spans import TRACEPARENT, UNSET, Clock, Tracing, failed, traceparent
from modelserver.surface.watching import Watch, Watched, Watcher

# Batches with traced requests.
#
# The spans of a batch are in the trace of its first traced request; those of the others name it as a link, as
# it names theirs. The handler's span has its id before the worker gets the batch, so that spans which a
# handler opens can be below it.

_PHASES = ("preprocess", "inference", "postprocess")


class Member(Protocol):
    """A traced request in a batch; ``request`` has its span, ``attributes`` name the model."""

    request: Any
    attributes: dict[str, str | int]

    def began(self, began: float, ended: float) -> None:
        """A handler had the batch in this time."""


class TracedBatch:
    """The spans of a batch; see :class:`modelserver.engine.batching.request.BatchTrace`."""

    __slots__ = ("_context", "_handler", "_members")

    def __init__(self, first: Member) -> None:
        tracing, above = first.request.tracing, first.request.context
        self._members = [first]
        self._context = tracing.child(above)
        self._handler = tracing.child(above)

    def add(self, member: Member) -> None:
        """Another traced request, or more of the last one, is in the batch."""
        if member is not self._members[-1]:
            self._members.append(member)

    @property
    def parent(self) -> str:
        """The trace context that the worker receives."""
        return traceparent(self._handler)

    def answered(self, batch: Any, result: Any, began: float, now: float) -> None:
        """The worker, which was free for the batch from ``began`` on, has answered it."""
        # What it took to send it there and back comes before.
        started = max(began, now - result.handler_time)
        for member in self._members:
            member.began(began, now)
        self._export_batch(batch, now)
        request = self._members[0].request
        export, clock = request.tracing.export, request.clock
        attributes = {"modelserver.batch.calls": result.calls} if result.calls > 1 else None
        failures = sum(answer.failed for answer in result.answers)
        status = failed(f"{failures} of {batch.size} instances failed.") if failures else UNSET
        ended = min(started + result.handler_time, now)
        export(
            "handler", self._handler, self._context, clock(started), clock(ended), attributes, status=status
        )
        for name, seconds in zip(_PHASES, result.phases, strict=True):
            if seconds > 0:
                until = min(started + seconds, ended)
                context = request.tracing.child(self._handler)
                export(name, context, self._handler, clock(started), clock(until))
                started = until

    def failed(self, batch: Any, error: Exception) -> None:
        """The batch ends without an answer of the worker."""
        now = time.monotonic()
        for member in self._members:
            member.began(now, now)
        self._export_batch(batch, now, error)

    def _export_batch(self, batch: Any, now: float, error: Exception | None = None) -> None:
        first, *others = self._members
        request = first.request
        for other in others:
            other.request.link(self._context)
        attributes: dict[str, str | int] = {
            **first.attributes,
            "modelserver.batch.id": batch.id,
            "modelserver.batch.size": batch.size,
            "modelserver.batch.requests": len(batch.parcels),
            "modelserver.batch.reason": batch.reason,
        }
        request.tracing.export(
            "batch",
            self._context,
            request.context,
            request.clock(batch.sent_at),
            request.clock(now),
            attributes,
            links=[member.request.context for member in self._members],
            status=UNSET if error is None else failed(str(error)),
        )


# Codes of gRPC that are the server's fault, as OpenTelemetry's conventions have them: UNKNOWN,
# DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
_FAULTS = frozenset({2, 4, 12, 13, 14, 15})
# Other batches that the span of a request names.
_MOST_LINKS = 128


class TracedRequest(Watcher):
    """The span of a request, which is exported when it has been answered.

    Args:
        tracing: exports it.
        watched: the request; over gRPC the whole call, which may have several requests.
        contexts: the span's and its parent's.

    ``clock`` is for all spans below it. ``batches`` are batches whose spans are in other traces.
    """

    __slots__ = (
        "_arrived",
        "_attributes",
        "_first_part",
        "_handled",
        "_language",
        "_name",
        "_parent",
        "_queued",
        "_status",
        "_watched",
        "batches",
        "clock",
        "context",
        "tracing",
    )

    def __init__(
        self, tracing: Tracing, watched: Watched, contexts: tuple[SpanContext, SpanContext | None]
    ) -> None:
        self.tracing = tracing
        self.context, self._parent = contexts
        self.clock = Clock()
        self.batches: list[SpanContext] = []
        self._watched = watched
        self._name = str(watched)
        self._arrived = watched.started or time.monotonic()
        self._attributes = watched.attributes()
        self._handled = 0.0
        self._status = 0
        self._first_part = 0.0
        self._queued: list[Queued] | None = []
        self._language: LanguageCall | None = None
        # For handlers, and for what the server itself calls.
        watched.replace_header(TRACEPARENT, traceparent(self.context).encode())

    def queued(self, request: Any, model: Any) -> None:
        if self._queued is None:
            return
        request.trace = queued = Queued(self, request.arrived, model.name, model.version)
        self._queued.append(queued)
        self._language = language_call(self._watched, request)
        self._attributes["modelserver.model"] = model.name
        self._attributes["modelserver.version"] = model.version

    def handled(self, queued: Queued, ended: float) -> None:
        """A handler has answered some of it."""
        self._handled = ended
        if self._queued is not None and queued in self._queued:
            self._queued.remove(queued)

    def link(self, batch: SpanContext) -> None:
        """Some of it is in this batch, whose span is in another trace."""
        if len(self.batches) < _MOST_LINKS:
            self.batches.append(batch)

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        if self._language is not None:
            self._language.replied(body)
        self._answered(status)

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._status = status
        self._first_part = time.monotonic()

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        if self._language is not None:
            self._language.ended(self._first_part - self._arrived)
        self._answered(self._status, "" if complete else "The answer broke off.")

    def left(self) -> None:
        self._finish(failed("The client disconnected."), {"error.type": "disconnected"})

    def _answered(self, status: int, fault: str = "") -> None:
        watched = self._watched
        watched.note_trace(f"{self.context.trace_id:032x}", self.tracing.note)
        code = watched.code
        is_fault = status >= 500 if code is None else code in _FAULTS
        name = "http.response.status_code" if code is None else "rpc.grpc.status_code"
        ended = failed(fault) if fault or is_fault else UNSET
        self._finish(ended, {name: status if code is None else code})

    def _finish(self, status: Status, attributes: dict[str, str | int]) -> None:
        """Exports its spans."""
        if self._queued is None:
            return
        now, clock, export = time.monotonic(), self.clock, self.tracing.export
        for queued in self._queued:
            queued.leave(now)
        # They refer to this object.
        self._queued = None
        end, child = clock(now), self.tracing.child
        answering = self._first_part or self._handled
        if answering:
            export("answer", child(self.context), self.context, clock(answering), end)
        first = "first part" if self._language is None else "first token"
        events = [Event(first, timestamp=clock(self._first_part))] if self._first_part else []
        self._attributes["modelserver.request_id"] = self._watched.request_id
        if self._language is not None:
            self._attributes |= self._language.attributes
        export(
            self._name,
            self.context,
            self._parent,
            clock(self._arrived),
            end,
            {**self._attributes, **attributes},
            kind=SpanKind.SERVER,
            links=self.batches,
            events=events,
            status=status,
        )


class Queued:
    """A traced request in the queue of a model, and in its batches."""

    __slots__ = ("_arrived", "_waits", "attributes", "request")

    def __init__(self, request: TracedRequest, arrived: float, model: str, version: str) -> None:
        self.request = request
        self.attributes: dict[str, str | int] = {"modelserver.model": model, "modelserver.version": version}
        self._arrived = arrived
        self._waits = True

    def sent(self, batch: Any) -> TracedBatch:
        trace: TracedBatch | None = batch.trace
        if trace is None:
            return TracedBatch(self)
        trace.add(self)
        return trace

    def began(self, began: float, ended: float) -> None:
        """A handler had a batch with some of it in this time."""
        self.leave(began)
        self.request.handled(self, ended)

    def leave(self, now: float) -> None:
        """It waits no longer for a handler; exports the span of its first wait."""
        if self._waits:
            self._waits = False
            above = self.request
            context = above.tracing.child(above.context)
            above.tracing.export(
                "queue", context, above.context, above.clock(self._arrived), above.clock(now)
            )


def watch_with(tracing: Tracing) -> Watch:
    """Returns a maker of watchers that trace the requests that the sampler selects."""

    def watch(watched: Watched) -> TracedRequest | None:
        contexts = tracing.sample(watched.headers if watched.has_traceparent else (), watched)
        return None if contexts is None else TracedRequest(tracing, watched, contexts)

    return watch
