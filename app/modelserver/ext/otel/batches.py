"""Batches with traced requests.

The spans of a batch are in the trace of its first traced request; those of the others name it as a link, as
it names theirs. The handler's span has its id before the worker gets the batch, so that spans which a handler
opens can be below it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from modelserver.ext.otel.spans import UNSET, failed, traceparent

if TYPE_CHECKING:
    from modelserver.engine.wire.messages import Result

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
        """What the worker is sent."""
        return traceparent(self._handler)

    def answered(self, batch: Any, result: Result, began: float, now: float) -> None:
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
            *("handler", self._handler, self._context, clock(started), clock(ended)),
            attributes,
            status=status,
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
            *("batch", self._context, request.context, request.clock(batch.sent_at), request.clock(now)),
            attributes,
            links=[member.request.context for member in self._members],
            status=UNSET if error is None else failed(str(error)),
        )
