"""A call's request in a model's pool."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.engine.ids import accept_request_id
from modelserver.engine.wire.messages import Answer
from modelserver.errors import ModelServerError, PayloadTooLarge
from modelserver.ext.grpc.watching import WatchedRequest
from modelserver.models.version import ModelVersion
from modelserver.surface.inference.codec import Parsed
from modelserver.surface.inference.requests import make_request

if TYPE_CHECKING:
    from modelserver.ext.grpc.call import GrpcCall

REQUEST_ID = "x-request-id"
_REQUEST_ID = REQUEST_ID.encode()
# What handlers get of the metadata.
_TRACE_HEADERS = frozenset({b"traceparent", b"tracestate", b"baggage"})
# The initial metadata with the id of the request's batch (kserve reference 2.2).
BATCH_ID = "x-batch-id"
# Bytes of the parts of an answer that may wait for the client.
MAX_UNSENT = 64 << 20

_pack = msgspec.msgpack.Encoder().encode
_NO_HEADERS = _pack([])


class Pending:
    """A submitted request; leaving the ``async with`` cancels it.

    Args:
        model: whose pool gets it, unless another version has the request's sequence.
        parsed: its rows.
        call: of the call.
        version: as named by the client, if any.
        watched: learns what becomes of it.
        parts: the answer may come in parts.

    Raises:
        ServiceUnavailable: the pool does not take it.
        Unacceptable: too many answers wait for their clients.
    """

    def __init__(
        self,
        model: ModelVersion,
        parsed: Parsed,
        call: GrpcCall,
        version: str | None,
        watched: WatchedRequest,
        *,
        parts: bool = False,
    ) -> None:
        call.check_room()
        now, left = time.monotonic(), call.time_remaining()
        traffic = None if version is not None else model.traffic
        if traffic is not None and (sequence_id := _sequence_id(parsed, model)):
            model = traffic.home(sequence_id, model)
        request = make_request(
            parsed, model, request_id_of(call), _context_of(call), now, left, explain=False
        )
        if call.on_queued is not None:
            call.on_queued(request, model)
        watched.queued(request, model)
        self.request = request
        self._call = call
        self._where = parsed.where
        self.model = model
        self._named = version is not None
        self._news = asyncio.Event()
        self._parts: deque[bytes] = deque()
        self._unsent = 0
        self._too_slow = self._answered = False
        request.on_done = self._on_done
        if parts:
            request.on_part = self._on_part
            request.backlog = lambda: self._unsent
        if traffic is not None and traffic.watches:
            traffic.watch(request, model)
        try:
            model.pool.submit(request, version)
        except Exception as error:
            if traffic is not None:
                traffic.refused(model, getattr(error, "status", 500))
            if isinstance(error, ModelServerError):
                model.metrics.requests.failed(error, request.id)
            # The request never ends: it and this object would keep each other.
            request.on_done = request.on_part = request.backlog = None
            raise

    async def __aenter__(self) -> Pending:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        request = self.request
        if isinstance(error, ModelServerError):
            error.logged_id = request.id
            self.model.metrics.requests.totals.fail(
                time.monotonic() - request.arrived, answered=self._answered
            )
            self.model.metrics.requests.failed(error, request.id)
        self.model.pool.cancel(request)
        if self._unsent:
            self._call.hold(-self._unsent)

    def _on_done(self, _: Request) -> None:
        self._news.set()

    def _on_part(self, request: Request, _: Answer, content: bytes) -> None:
        if self._unsent > MAX_UNSENT:
            self._too_slow = True
            self.model.pool.cancel(request)
        else:
            self._unsent += len(content)
            self._call.hold(len(content))
            self._parts.append(content)
        self._news.set()

    async def answers(self) -> list[bytes]:
        """The answers to all rows.

        Raises:
            ModelServerError: the first failure.
        """
        while not self.request.done:
            await self._news.wait()
        return self._read()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts as they arrive, and what the handler returned. Raises as :meth:`answers`."""
        request = self.request
        while True:
            while self._parts:
                part = self._parts.popleft()
                yield part
                self._unsent -= len(part)
                self._call.hold(-len(part))
            if request.done:
                break
            self._news.clear()
            await self._news.wait()
        for last in self._read():
            yield last

    def _read(self) -> list[bytes]:
        request = self.request
        if self._too_slow:
            raise PayloadTooLarge(f"The client reads too slowly: {self._unsent} bytes wait for it.")
        if request.error is None:
            self._answered = True
            self.model.metrics.requests.answered(
                time.monotonic() - request.arrived, request.queued, self._named
            )
        failure = request.failure(self._where)
        if failure is not None:
            if self.model.exposes_errors and failure.is_handlers:
                failure.request_id = request.id
            try:
                raise failure
            finally:
                # The error refers to this frame, and thereby to the bodies: they would outlive the call.
                failure = request.error = None
        return request.contents()


def _sequence_id(parsed: Parsed, model: ModelVersion) -> str:
    """The id of the sequence that the message names, empty if there is none."""
    names = model.sequence_headers
    value = b"" if names is None else dict(parsed.sequence).get(names.id.encode(), b"")
    return value.strip().decode("latin-1")


def _context_of(call: GrpcCall) -> bytes:
    """The call's trace context (W3C), which handlers get as headers."""
    headers = [header for header in call.head.headers if header[0] in _TRACE_HEADERS]
    return _pack(headers) if headers else _NO_HEADERS


def request_id_of(call: GrpcCall) -> str:
    """The id from the call's metadata if it is valid, otherwise a new one."""
    return accept_request_id(next((value for name, value in call.head.headers if name == _REQUEST_ID), b""))
