"""What waits: a request, the parcels it travels in, and the batch they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver.ids import make_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.wire.messages import Answer, Row


class Request:
    """What one client sent and waits for: ``len(rows)`` instances.

    ``key``: only requests of equal key may share a batch. ``arrived`` and ``deadline`` are seconds of the
    queue's clock. Exactly one of :meth:`deliver` (for the last missing answer) and :meth:`fail` ends the
    request; ``on_done`` is called once, then. Before that ``on_part`` is called with each part of an answer
    that comes in parts (its status and headers count in the first only); None where none can be taken.
    ``backlog`` tells how many bytes of the parts its client has not taken yet, if that is known.
    ``place`` and ``waiting`` (parcels) are the queue's own, ``worker`` (which got it last) is the pool's.
    ``began``: when a handler had the first of it. ``handler_time`` and ``queued`` are the seconds in which a
    handler had some of it, and in which it waited for one, wherever that was.
    """

    __slots__ = (
        "_spans",
        "answers",
        "arrived",
        "backlog",
        "batch_id",
        "batch_size",
        "began",
        "bodies",
        "deadline",
        "done",
        "error",
        "handler_time",
        "id",
        "key",
        "missing",
        "nbytes",
        "on_done",
        "on_part",
        "place",
        "queued",
        "requeued",
        "rows",
        "waiting",
        "worker",
    )

    def __init__(
        self,
        request_id: str,
        rows: Sequence[Row],
        bodies: Sequence[bytes],
        arrived: float,
        *,
        key: object = None,
        deadline: float | None = None,
        on_done: Callable[[Request], None] | None = None,
    ) -> None:
        self.id = request_id
        self.rows = rows
        self.bodies = bodies
        self.arrived = arrived
        self.key = key
        self.deadline = deadline
        self.on_done = on_done
        self.on_part: Callable[[Request, Answer, bytes], None] | None = None
        self.backlog: Callable[[], int] | None = None
        self.worker: Any = None
        self.answers: list[tuple[Answer, bytes] | None] = [None] * len(rows)
        self.missing = len(rows)
        self.nbytes = sum(map(len, bodies))
        self.error: Exception | None = None
        self.done = False
        self.began: float | None = None
        self.queued = 0.0
        self._spans: list[tuple[float, float]] | None = None
        self.waiting = 0
        self.place = 0
        self.batch_id = ""
        self.batch_size = 0
        self.handler_time = 0.0
        self.requeued = False

    def handled(self, began: float, seconds: float) -> None:
        """A handler had some of its instances for so many ``seconds``.

        For a request in several batches, to be called in the order of their ends: what overlaps counts once.
        """
        if self.began is None:
            self.began, self.handler_time, self.queued = began, seconds, began - self.arrived
            return
        spans = self._spans
        if spans is None:
            spans = self._spans = [(self.began, self.began + self.handler_time)]
        end = began + seconds
        while spans and spans[-1][1] >= began:
            began = min(began, spans.pop()[0])
        spans.append((began, end))
        self.began = spans[0][0]
        self.handler_time = sum(end - began for began, end in spans)
        self.queued = end - self.arrived - self.handler_time

    def deliver(self, start: int, answers: list[tuple[Answer, bytes]]) -> None:
        """Puts answers in their places; an ended request ignores them."""
        if self.done:
            return
        self.answers[start : start + len(answers)] = answers
        self.missing -= len(answers)
        if self.missing == 0:
            self._end()

    def fail(self, error: Exception) -> bool:
        """Ends the request with an error; False if it had ended before."""
        if self.done:
            return False
        self.error = error
        self._end()
        return True

    def _end(self) -> None:
        self.done = True
        on_done = self.on_done
        # Who waits for it usually knows it: together they would stay until a collector comes by.
        self.on_done = self.on_part = self.backlog = None
        if on_done is not None:
            on_done(self)


class Parcel:
    """Instances ``start`` to ``start + count`` of a request, which travel in one batch."""

    __slots__ = ("count", "request", "start")

    def __init__(self, request: Request, start: int, count: int) -> None:
        self.request = request
        self.start = start
        self.count = count


class Batch:
    """Parcels handed to a worker together.

    ``reason`` says why it went: ``size``, ``delay``, ``idle`` or ``flush``. ``at_once``: what it costs says
    nothing of other batches. ``heard_at`` is the worker's own.
    """

    __slots__ = ("at_once", "heard_at", "id", "parcels", "reason", "sent_at", "sequence", "size")

    def __init__(self, parcels: list[Parcel], size: int, reason: str, *, at_once: bool = False) -> None:
        self.id = make_uuid()
        self.parcels = parcels
        self.size = size
        self.reason = reason
        self.at_once = at_once
        self.sent_at = 0.0
        self.heard_at = 0.0
        self.sequence = -1

    def request_of(self, row: int) -> Request | None:
        """Whose the row at this position is; None if there is no such row."""
        for parcel in self.parcels:
            if row < parcel.count:
                return parcel.request
            row -= parcel.count
        return None

    def rows_of(self, request: Request) -> list[int]:
        """The positions of the request's rows."""
        rows: list[int] = []
        position = 0
        for parcel in self.parcels:
            if parcel.request is request:
                rows += range(position, position + parcel.count)
            position += parcel.count
        return rows

    def contents(self) -> tuple[list[Row], list[bytes]]:
        """The rows and their bytes, in the order of the batch."""
        if len(self.parcels) == 1 and self.size == len(self.parcels[0].request.rows):
            request = self.parcels[0].request
            return list(request.rows), list(request.bodies)
        rows: list[Row] = []
        bodies: list[bytes] = []
        for parcel in self.parcels:
            request = parcel.request
            if parcel.count == len(request.rows):
                rows += request.rows
                bodies += request.bodies
            else:
                end = parcel.start + parcel.count
                rows += request.rows[parcel.start : end]
                bodies += request.bodies[parcel.start : end]
        return rows, bodies
