"""From ended requests to responses over REST."""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.engine.tensors.weight import TooHeavy
from modelserver.engine.wire.messages import Answer
from modelserver.errors import InternalError, ModelServerError
from modelserver.models.version import ModelVersion
from modelserver.surface.http.answers import error_body, header_block
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.inference.codec import Codec, Parsed
from modelserver.surface.inference.requests import sequence_headers

_log = logging.getLogger("modelserver.api")


class Reply(msgspec.Struct, eq=False):
    """Answers an exchange when its request has ended. ``sent_status`` is the status of an answer in parts,
    ``sends_events`` whether these are events.
    """

    exchange: Exchange
    model: ModelVersion
    codec: Codec
    parsed: Parsed
    off_loop: OffLoop
    sent_status: int = 0
    sends_events: bool = False

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        """A part of the body, before :meth:`whole` sends the last one (reference 6.6).

        Unlike in TorchServe, the internal ``ts_stream_next`` is not among the headers.
        """
        if not self.sent_status:
            self.sent_status = answer.status
            self.sends_events = answer.content_type.startswith("text/event-stream")
            queue = 0.0 if request.began is None else request.began - request.arrived
            heads = f"{self._heads(request)}server-timing: queue;dur={queue * 1e3:.3f}\r\n"
            extra = heads.encode("latin-1") + header_block(answer.headers or ())
            self.exchange.begin(answer.status, answer.content_type, extra, answer.phrase)
            request.backlog = self.exchange.unsent
        self.exchange.send(content)

    def _last(self, request: Request) -> None:
        """The end of an answer in parts, which is broken off after a failure."""
        failure = request.failure()
        if failure is not None:
            _log.warning("Request %s: the answer broke off after its first part: %s", request.id, failure)
            self.model.metrics.requests.broken_off()
            self.model.metrics.requests.totals.fail(monotonic() - request.arrived, answered=False)
            self.model.metrics.requests.failed(failure, request.id)
            _, document = error_body(failure, form=self.exchange.target.route.form)
            ending = self.codec.ending(document) if self.sends_events else None
            self.exchange.send(ending or b"")
            self.exchange.end(complete=ending is not None)
            return
        self.exchange.send(*request.contents())
        self._extra(request)
        self.model.metrics.requests.ended(self.sent_status, request.id)
        self.exchange.end()

    def whole(self, request: Request) -> None:
        """The only row's answer is the body, or its last part."""
        if self.sent_status:
            self._last(request)
            return
        answered = request.answers[0]
        if answered is None or answered[0].failed:
            self.joined(request)
            return
        answer, content = answered
        extra = self._extra(request)
        if answer.headers:
            extra += header_block(answer.headers)
        if answer.status != 200:
            self.model.metrics.requests.ended(answer.status, request.id)
        self.exchange.reply(answer.status, content, answer.content_type, extra, answer.phrase)

    def joined(self, request: Request) -> None:
        """The codec makes one body of the rows' answers; the first failure fails all."""
        loop_watch.request = self.exchange
        failure = request.failure(self.parsed.where)
        if failure is not None:
            self._fail(request, failure)
            return
        try:
            encoded = self.parsed.encode(self.model, request)
        except TooHeavy:
            self._encode_off_loop(request)
        except ModelServerError as error:
            self._fail(request, error)
        except Exception:  # noqa: BLE001 - a codec that fails costs no request its answer
            _log.exception("Request %s: the answers have no document", request.id)
            self._fail(request, InternalError())
        else:
            self._encoded(request, encoded)

    def _encode_off_loop(self, request: Request) -> None:
        """Responds with answers that would block the event loop."""

        async def encode() -> None:
            encoded = await self.parsed.encode_off_loop(self.model, request, self.off_loop.helpers)
            self._encoded(request, encoded)

        size = sum(map(len, request.contents()))
        self.exchange.on_disconnect = self.off_loop.start(size, encode(), partial(self._fail, request))

    def _encoded(self, request: Request, encoded: tuple[bytes, str, bytes]) -> None:
        body, content_type, lines = encoded
        answers = [answered[0] for answered in request.answers if answered is not None]
        status = next((answer.status for answer in reversed(answers) if answer.status != 200), 200)
        headers = next((answer.headers for answer in answers if answer.headers), ())
        extra = self._extra(request) + header_block(headers) + lines
        if status != 200:
            self.model.metrics.requests.ended(status, request.id)
        self.exchange.reply(status, body, content_type, extra)

    def _fail(self, request: Request, error: ModelServerError) -> None:
        self.model.metrics.requests.totals.fail(monotonic() - request.arrived, answered=request.error is None)
        self.model.metrics.requests.failed(error, request.id, form=self.exchange.target.route.form)
        if request.error is None:
            extra = self._extra(request)
            if self.model.exposes_errors and error.is_handlers:
                error.request_id = self.exchange.request_id
        else:
            extra = self._heads(request).encode("latin-1") if request.batch_id else b""
        self.codec.fail(self.exchange, error, self.model, request.batch_id, extra)

    def _extra(self, request: Request) -> bytes:
        queue = request.queued
        named = self.exchange.target.route.version is not None
        self.model.metrics.requests.answered(monotonic() - request.arrived, queue, named)
        return (
            f"{self._heads(request)}server-timing: queue;dur={queue * 1e3:.3f}, "
            f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
        ).encode("latin-1")

    def _heads(self, request: Request) -> str:
        return f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"


class SequenceReply(Reply):
    """The reply of a model with sequences, which names the sequence."""

    sequence_answer: list[tuple[str, str]] | None = None

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        if not self.sent_status:
            self.sequence_answer = answer.headers
        super().part(request, answer, content)

    def _heads(self, request: Request) -> str:
        names = self.model.sequence_headers
        assert names is not None  # noqa: S101 - otherwise this class is not used
        answered = request.answers[0]
        sequence_answer = answered[0].headers if answered is not None else self.sequence_answer
        own = header_block(sequence_headers(request, names, sequence_answer or ()))
        return super()._heads(request) + own.decode("latin-1")
