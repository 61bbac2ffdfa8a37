"""Traced requests: REST's, watched on their exchanges, and calls over gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import Event
from opentelemetry.trace import SpanKind

from modelserver.ext.otel.batches import TracedBatch
from modelserver.ext.otel.spans import TRACEPARENT, UNSET, Clock, failed, traceparent
from modelserver.surface.http.exchange import Watcher

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Status

    from modelserver.ext.otel.spans import Tracing
    from modelserver.surface.http.exchange import Exchange, HotRoutes

# Codes of gRPC that are the server's fault, as OpenTelemetry's conventions have them: UNKNOWN,
# DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
_FAULTS = frozenset({2, 4, 12, 13, 14, 15})
# Calls that ask a model: the names of their methods.
_INFERENCE = frozenset(
    {"Predictions", "StreamPredictions", "StreamPredictions2", "ModelInfer", "ModelStreamInfer"}
)
# Other batches that the span of a request names.
_MOST_LINKS = 128


class TracedRequest:
    """The span of a request, which is exported when it has been answered.

    ``context`` is the span's, ``clock`` for all spans below it. ``batches`` are batches whose spans are in
    other traces.
    """

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        contexts: tuple[SpanContext, SpanContext | None],
        arrived: float,
        attributes: dict[str, str | int],
    ) -> None:
        self.tracing = tracing
        self.context, self._parent = contexts
        self.clock = Clock()
        self.batches: list[SpanContext] = []
        self._name = name
        self._arrived = arrived
        self._attributes = attributes
        self._handled = 0.0
        self._first_part = 0.0
        self._queued: list[Queued] | None = []

    @property
    def traceparent(self) -> str:
        """What the server passes on: this span is the parent of what follows."""
        return traceparent(self.context)

    def queue(self, request: Any, model: Any) -> None:
        """It is about to be queued for a model, as this request."""
        if self._queued is None:
            return
        request.trace = queued = Queued(self, request.arrived, model.name, model.version)
        self._queued.append(queued)
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

    def part(self) -> None:
        """The first part of its answer is sent."""
        self._first_part = time.monotonic()

    def finish(self, status: Status, attributes: dict[str, str | int]) -> None:
        """It is answered, or nobody waits for an answer; exports its spans."""
        if self._queued is None:
            return
        now, clock, export = time.monotonic(), self.clock, self.tracing.export
        for queued in self._queued:
            queued.leave(now)
        # They refer to this object.
        self._queued = None
        end, child = clock(now), self.tracing.child
        begun = self._first_part or self._handled
        if begun:
            export("answer", child(self.context), self.context, clock(begun), end)
        events = [Event("first part", timestamp=clock(self._first_part))] if self._first_part else []
        export(
            *(self._name, self.context, self._parent, clock(self._arrived), end),
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


class TracedRoutes:
    """Hot routes whose requests are traced as the sampler decides."""

    def __init__(self, hot: HotRoutes, tracing: Tracing) -> None:
        self._serve = hot.serve
        self._tracing = tracing
        # Called for each request: a method of its own would cost another call.
        self.find = hot.find

    def serve(self, exchange: Exchange) -> None:
        headers = exchange.headers if exchange.has_traceparent else ()
        contexts = self._tracing.sample(headers, exchange)
        if contexts is not None:
            exchange.watcher = TracedExchange(exchange, self._tracing, contexts, exchange.watcher)
        self._serve(exchange)


class TracedExchange(Watcher):
    """Tells the span of a request over REST what becomes of it, and tells the ``next`` watcher, too."""

    __slots__ = ("_exchange", "_next", "_status", "_trace")

    def __init__(
        self,
        exchange: Exchange,
        tracing: Tracing,
        contexts: tuple[SpanContext, SpanContext | None],
        following: Watcher | None,
    ) -> None:
        self._exchange = exchange
        self._next = following or Watcher()
        self._status = 0
        route = exchange.target.route
        arrived = exchange.started or time.monotonic()
        attributes: dict[str, str | int] = {
            "http.request.method": exchange.method.decode(),
            "http.route": route.template,
            "modelserver.request_id": exchange.request_id,
        }
        self._trace = TracedRequest(tracing, str(exchange), contexts, arrived, attributes)
        # For handlers, and for what the server itself calls.
        exchange.replace_header(TRACEPARENT, self._trace.traceparent.encode())

    def queued(self, request: Any, model: Any) -> None:
        self._trace.queue(request, model)
        self._next.queued(request, model)

    def replied(self, status: int, body: bytes, content_type: str, extra: bytes) -> None:
        self._finish(status)
        self._next.replied(status, body, content_type, extra)

    def begun(self, status: int, content_type: str, extra: bytes) -> None:
        self._status = status
        self._trace.part()
        self._next.begun(status, content_type, extra)

    def sent(self, part: bytes) -> None:
        self._next.sent(part)

    def ended(self, complete: bool) -> None:
        self._finish(self._status, "" if complete else "The answer broke off.")
        self._next.ended(complete)

    def left(self) -> None:
        self._exchange.watcher = None
        self._trace.finish(failed("The client disconnected."), {"error.type": "disconnected"})
        self._next.left()

    def _finish(self, status: int, fault: str = "") -> None:
        trace = self._trace
        # It refers to this object.
        self._exchange.watcher = None
        self._exchange.note_trace(f"{trace.context.trace_id:032x}", trace.tracing.note)
        ended = failed(fault) if fault or status >= 500 else UNSET
        trace.finish(ended, {"http.response.status_code": status})


class TracedCall(TracedRequest):
    """The span of a call over gRPC. ``request_id`` is that of its first request."""

    request_id = ""

    def queue(self, request: Any, model: Any) -> None:
        self.request_id = self.request_id or request.id
        super().queue(request, model)

    def end(self, request_id: str, code: int) -> None:
        self.tracing.note(request_id, f"{self.context.trace_id:032x}")
        attributes: dict[str, str | int] = {
            "rpc.grpc.status_code": int(code),
            "modelserver.request_id": request_id,
        }
        self.finish(failed("") if code in _FAULTS else UNSET, attributes)


class TracedCalls:
    """Calls over gRPC, traced as the sampler decides."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, path: str, headers: list[tuple[bytes, bytes]], arrived: float) -> TracedCall | None:
        """The span of a call of `service/method` if it is traced."""
        service, _, method = path.partition("/")
        if method not in _INFERENCE:
            return None
        contexts = self._tracing.sample(headers, path)
        if contexts is None:
            return None
        told = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        return TracedCall(self._tracing, path, contexts, arrived, dict(told))
