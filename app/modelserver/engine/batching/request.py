"""A request, the parcels it is cut into, and the batches that these make up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from modelserver.engine.ids import make_uuid
from modelserver.engine.wire.messages import BODY, Answer, Result, Row
from modelserver.errors import HandlerError, InternalError, ModelServerError


class BatchTrace(Protocol):
    """A batch that has traced requests."""

    @property
    def parent(self) -> str:
        """The span of the handler's call as a ``traceparent``, which its worker is sent."""

    def answered(self, batch: Batch, result: Result, began: float, now: float) -> None:
        """The handler had it from ``began`` on, and has answered."""

    def failed(self, batch: Batch, error: Exception) -> None:
        """It ends without an answer of the worker."""


class RequestTrace(Protocol):
    """A traced request."""

    def sent(self, batch: Batch) -> BatchTrace:
        """It is part of a batch that a worker gets now."""


class Request(msgspec.Struct, eq=False):
    """One client's request: ``len(rows)`` instances.

    Only requests with equal ``key`` may share a batch. ``arrived`` and ``deadline`` are seconds of the
    queue's clock. A request ends once, with its last missing answer (:meth:`deliver`) or an error
    (:meth:`fail`), and then calls ``on_done``. Before that, ``on_part`` is called with each part of an answer
    in parts (status and headers count in the first only); None if the client takes no parts.
    ``backlog`` returns how many bytes of the parts the client has not taken yet, where that is known.
    ``place`` and ``waiting`` (parcels) belong to the queue, ``worker`` (the last that got it) to the pool.
    ``trace`` is None unless the request is traced.
    ``began`` is when a handler got the first of its instances, ``handler_time`` the seconds during which a
    handler had some of them, ``queued`` those during which none had.
    """

    id: str
    rows: list[Row]
    bodies: Sequence[bytes]
    arrived: float
    key: object = None
    deadline: float | None = None
    on_done: Callable[[Request], None] | None = None
    on_part: Callable[[Request, Answer, bytes], None] | None = None
    backlog: Callable[[], int] | None = None
    worker: Any = None
    trace: RequestTrace | None = None
    answers: list[tuple[Answer, bytes] | None] = []
    missing: int = 0
    nbytes: int = 0
    error: Exception | None = None
    done: bool = False
    requeued: bool = False
    began: float | None = None
    queued: float = 0.0
    handler_time: float = 0.0
    spans: list[tuple[float, float]] | None = None
    waiting: int = 0
    place: int = 0
    batch_id: str = ""
    batch_size: int = 0

    def __post_init__(self) -> None:
        bodies = self.bodies
        self.missing = count = len(self.rows)
        self.answers = [None] * count
        # Most often one.
        self.nbytes = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))

    def handled(self, began: float, seconds: float) -> None:
        """A handler had some of its instances for ``seconds``; time that overlaps counts once.

        To be called in the order in which the batches ended.
        """
        if self.began is None:
            self.began, self.handler_time, self.queued = began, seconds, began - self.arrived
            return
        spans = self.spans
        if spans is None:
            spans = self.spans = [(self.began, self.began + self.handler_time)]
        end = began + seconds
        while spans and spans[-1][1] >= began:
            began = min(began, spans.pop()[0])
        spans.append((began, end))
        self.began = spans[0][0]
        self.handler_time = sum(end - began for began, end in spans)
        self.queued = end - self.arrived - self.handler_time

    def deliver(self, start: int, answers: list[tuple[Answer, bytes]]) -> None:
        """Stores the answers from row ``start`` on; ignored once the request has ended."""
        if self.done:
            return
        self.answers[start : start + len(answers)] = answers
        self.missing -= len(answers)
        if self.missing == 0:
            self._end()

    def fail(self, error: Exception) -> bool:
        """Ends the request with an error; False if it had already ended."""
        if self.done:
            return False
        self.error = error
        self._end()
        return True

    def failure(self, where: str = "") -> ModelServerError | None:
        """The error of an ended request, or of its first failed row, which ``where`` names; None without one.

        It is not raised here: request and error would form a reference cycle.
        """
        error = self.error
        if error is not None:
            return error if isinstance(error, ModelServerError) else InternalError(str(error))
        for index, (answer, content) in enumerate(cast("list[tuple[Answer, bytes]]", self.answers)):
            if answer.failed:
                prefix = (where % index).encode() if where and len(self.rows) > 1 else b""
                return HandlerError.of(answer, prefix + content, whole=self.rows[0].kind == BODY)
        return None

    def contents(self) -> list[bytes]:
        """The answers to the rows of a request without a failure."""
        return [content for _, content in cast("list[tuple[Answer, bytes]]", self.answers)]

    def _end(self) -> None:
        self.done = True
        on_done = self.on_done
        # The callbacks usually refer to the request: such cycles would stay until the garbage collector runs.
        self.on_done = self.on_part = self.backlog = None
        if on_done is not None:
            on_done(self)


@dataclass(frozen=True, slots=True)
class SequenceMark:
    """The id of a request's sequence, and whether the sequence starts or ends with this request."""

    id: str
    starts: bool = False
    ends: bool = False


class SequencedRequest(Request, kw_only=True):
    """A request of a sequence; ``is_first``: the sequence began with it. ``line`` belongs to the queue."""

    mark: SequenceMark
    is_first: bool = False
    line: Any = None


class Parcel(msgspec.Struct, eq=False):
    """Instances ``start`` to ``start + count`` of a request, sent in one batch."""

    request: Request
    start: int
    count: int


class Batch(msgspec.Struct, eq=False):
    """Parcels sent to a worker together.

    ``reason`` says why it was sent: ``size``, ``delay``, ``idle`` or ``flush``. ``at_once``: its cost says
    nothing about other batches. ``active_at`` belongs to the worker. ``trace`` is None unless one of its
    requests is traced.
    """

    parcels: list[Parcel]
    size: int
    reason: str
    at_once: bool = False
    id: str = msgspec.field(default_factory=make_uuid)
    sent_at: float = 0.0
    active_at: float = 0.0
    sequence: int = -1
    trace: BatchTrace | None = None

    def sent(self, worker: Any, now: float) -> None:
        self.sent_at = now
        for parcel in self.parcels:
            request = parcel.request
            request.worker = worker
            if not request.batch_id:
                request.batch_id = self.id
                request.batch_size = self.size
            if request.trace is not None:
                self.trace = request.trace.sent(self)

    def returned(self) -> None:
        """Forgets the worker, which has not begun it."""
        for parcel in self.parcels:
            request = parcel.request
            if request.batch_id == self.id:
                request.batch_id = ""
            if parcel.count == len(request.rows):
                request.worker = None

    def failed(self, error: Exception) -> list[Request]:
        """Its requests, which end with this error unless they have ended."""
        if self.trace is not None:
            self.trace.failed(self, error)
        return [parcel.request for parcel in self.parcels]

    def try_again(self) -> list[Request]:
        """Notes that it is sent again; returns the requests whose clients have a part of the answer."""
        requests = [parcel.request for parcel in self.parcels]
        for request in requests:
            request.requeued = True
        return [request for request in requests if request.on_part is not None and request.began is not None]

    def request_of(self, row: int) -> Request | None:
        """The request that the row at this position belongs to; None if there is no such row."""
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

    def contents(self) -> tuple[list[Row], Sequence[bytes]]:
        """The rows and their bytes, in the order of the batch; not to be changed."""
        if len(self.parcels) == 1 and self.size == len(self.parcels[0].request.rows):
            request = self.parcels[0].request
            return request.rows, request.bodies
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
