"""Who waits for the answer to a request in a queue."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from modelserver.errors import HandlerError, ModelServerError
from modelserver.http.answers import JSON, header_block
from modelserver.inference import v1
from modelserver.inference.sequences import sequence_headers
from modelserver.inference.v2 import (
    SECONDS,
    encode_answer,
    said_beside,
)
from modelserver.telemetry.stalls import served
from modelserver.wire.messages import BODY, Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.batching.request import Request
    from modelserver.http.aside import Aside
    from modelserver.http.exchange import Exchange
    from modelserver.inference.routes import Route
    from modelserver.inference.v2 import Answering, Inference
    from modelserver.models.registry import ModelVersion

_log = logging.getLogger("modelserver.api")


class Reply:
    """Turns an ended request into the answer to its exchange."""

    __slots__ = ("_aside", "_begun", "_clock", "_exchange", "_model", "_route")

    def __init__(
        self,
        exchange: Exchange,
        model: ModelVersion,
        route: Route,
        clock: Callable[[], float],
        aside: Aside,
    ) -> None:
        self._exchange = exchange
        self._model = model
        self._route = route
        self._clock = clock
        self._aside = aside
        self._begun = False

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        """A part of the body, before :meth:`whole` brings the last one (reference 6.6).

        Better than TorchServe: its internal mark ``ts_stream_next`` is not among the headers.
        """
        if not self._begun:
            self._begun = True
            queue = f"server-timing: queue;dur={_queued(request) * 1e3:.3f}\r\n"
            extra = (self._heads(request) + queue).encode("latin-1") + header_block(answer.headers or ())
            self._exchange.begin(answer.status, answer.content_type, extra, answer.phrase)
            request.backlog = self._exchange.unsent
        self._exchange.send(content)

    def _last(self, request: Request) -> None:
        """The end of an answer in parts. After a failure all that can be done is to break it off."""
        answered = None if request.error is not None else request.answers[0]
        if answered is None or answered[0].failed:
            cause = str(request.error) if answered is None else answered[1].decode("utf-8", "replace")
            _log.warning("Request %s: the answer broke off after its first part: %s", request.id, cause)
            self._model.metrics.broken_off()
            self._exchange.end(complete=False)
            return
        self._exchange.send(answered[1])
        self._extra(request)
        self._exchange.end()

    def whole(self, request: Request) -> None:
        """The one answer is the body, or the last part of it."""
        if self._begun:
            self._last(request)
            return
        answered = None if request.error is not None else request.answers[0]
        if answered is None:
            self._error(request)
            return
        answer, content = answered
        if answer.failed:
            self._failed(request, answer, content)
            return
        extra = self._extra(request)
        if answer.headers:
            extra += header_block(answer.headers)
        self._exchange.reply(answer.status, content, answer.content_type, extra, answer.phrase)

    def split(self, request: Request) -> None:
        """The answers are the predictions, or the first failure is everybody's."""
        served.request = self._exchange
        joined = self._joined(request, b"instances[%d]: ")
        if joined is None:
            return
        status, headers, predictions = joined
        key = b"explanations" if self._route.explain else b"predictions"
        body = v1.join(predictions, request.batch_id if self._model.batches else None, key)
        self._exchange.reply(status, body, JSON, self._extra(request) + headers)

    def tensors(self, asked: Inference, request: Request) -> None:
        """The answers are rows of the outputs, or the first failure is everybody's."""
        served.request = self._exchange
        joined = self._joined(request, b"row %d: ")
        if joined is None:
            return
        status, headers, contents = joined
        batch_id = request.batch_id if self._model.batches else None
        answering = asked.answering(
            self._model, contents, self._exchange.request_id, batch_id, said_beside(request)
        )
        if answering.is_light:
            try:
                self._encoded(request, status, headers, encode_answer(answering))
            except ModelServerError as error:
                self._not_encoded(request, error)
        else:
            self._encode_aside(request, status, headers, answering)

    def _encode_aside(self, request: Request, status: int, headers: bytes, answering: Answering) -> None:
        """The same for outputs that would hold up the event loop."""

        async def encode() -> None:
            call = self._aside.helpers.call(SECONDS, encode_answer, answering.without_inputs())
            self._encoded(request, status, headers, await call)

        self._exchange.on_disconnect = self._aside.start(
            sum(map(len, answering.answers)), encode(), partial(self._not_encoded, request)
        )

    def _encoded(
        self, request: Request, status: int, headers: bytes, encoded: tuple[bytes, str, bytes]
    ) -> None:
        body, content_type, length = encoded
        self._exchange.reply(status, body, content_type, self._extra(request) + headers + length)

    def _not_encoded(self, request: Request, error: ModelServerError) -> None:
        self._exchange.fail(error, kserve=True, extra=self._extra(request))

    def _joined(self, request: Request, where: bytes) -> tuple[int, bytes, list[bytes]] | None:
        """Status, header lines and contents of the rows' answers; None if it was answered with a failure.

        ``where`` says which of several rows failed.
        """
        if request.error is not None:
            self._error(request)
            return None
        status, headers, contents = 200, None, []
        for index, answered in enumerate(request.answers):
            assert answered is not None  # noqa: S101 - a request ends without an error when all are there
            answer, content = answered
            if answer.failed:
                prefix = where % index if len(request.rows) > 1 else b""
                self._failed(request, answer, prefix + content)
                return None
            if answer.status != 200:
                status = answer.status
            headers = headers or answer.headers
            contents.append(content)
        return status, header_block(headers) if headers else b"", contents

    def _failed(self, request: Request, answer: Answer, content: bytes) -> None:
        error = HandlerError(content.decode("utf-8", "replace"), answer.status)
        # A handler that failed on a body that was not split: the worker could not know it came by V1.
        error.kserve_status = 500 if answer.status == 503 and request.rows[0].kind == BODY else None
        error.type = answer.error_type  # type: ignore[misc]  # the worker names it
        if self._model.exposes_errors:
            error.request_id = self._exchange.request_id
        self._fail(request, error, self._extra(request))

    def _fail(self, request: Request, error: ModelServerError, extra: bytes) -> None:
        batch_id = request.batch_id if self._route.v1 and self._model.batches else None
        self._exchange.fail(error, kserve=self._route.kserve, extra=extra, batch_id=batch_id)

    def _error(self, request: Request) -> None:
        error = request.error
        if not isinstance(error, ModelServerError):
            error = HandlerError(str(error), 500)
        extra = self._heads(request).encode("latin-1") if request.batch_id else b""
        self._fail(request, error, extra)

    def _extra(self, request: Request) -> bytes:
        arrived = request.arrived
        queue = _queued(request)
        self._model.metrics.answered(self._clock() - arrived, queue, self._route.version is not None)
        return (
            f"{self._heads(request)}server-timing: queue;dur={queue * 1e3:.3f}, "
            f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
        ).encode("latin-1")

    def _heads(self, request: Request) -> str:
        return f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"


class SequenceReply(Reply):
    """The same for a model with sequences: the answer names its own."""

    __slots__ = ("_said",)

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        if not self._begun:
            self._said = answer.headers
        super().part(request, answer, content)

    def _heads(self, request: Request) -> str:
        names = self._model.sequence_headers
        assert names is not None  # noqa: S101 - that is why this class was taken
        answered = request.answers[0]
        said = answered[0].headers if answered is not None else getattr(self, "_said", None)
        own = header_block(sequence_headers(request, names, said or ()))
        return super()._heads(request) + own.decode("latin-1")


def _queued(request: Request) -> float:
    arrived = request.arrived
    return (request.dispatched or arrived) - arrived
