"""The payload log of gRPC.

An event's body is the message, named by its content type. An answer in parts is logged as one message, a
failure not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.grpc.watched.watching import Watcher
from modelserver.ext.payloads.call import LoggedCall
from modelserver.surface.http.exchange import with_header

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.ext.grpc.call import Call
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.ext.payloads.log import PayloadLog


class PayloadWatch:
    """Logs requests and their answers."""

    def __init__(self, log: PayloadLog) -> None:
        self._log = log

    def __call__(self, path: str, asked: AnyMessage, call: Call) -> Watcher:
        headers = call.head.headers
        if call.trace is not None:
            headers = with_header(headers, b"traceparent", call.trace.traceparent.encode())
        about = (("modelname", asked.model_name), ("modelversion", asked.model_version), ("path", path))
        logged = LoggedCall(self._log, headers, about)
        if self._log.requests:
            logged.asked(asked.SerializeToString(), _type(asked))
        return _Logged(logged)


class _Logged(Watcher):
    __slots__ = ("_last", "_logged")

    def __init__(self, logged: LoggedCall) -> None:
        self._logged = logged
        self._last: AnyMessage | None = None

    def sent(self, part: AnyMessage) -> None:
        self._logged.part(part.prediction)
        self._last = part

    def answered(self, answer: AnyMessage | None, request: Request, batch_id: str | None) -> None:
        last = self._last
        if last is not None and (prediction := self._logged.whole()) is not None:
            # The last part is sent already; its other fields apply to the whole answer.
            last.prediction = prediction
            answer = last
        if answer is not None:
            self._logged.answered(_type(answer), answer.SerializeToString(), batch_id or "")


def _type(said: AnyMessage) -> str:
    return f"application/protobuf; proto={said.DESCRIPTOR.full_name}"
