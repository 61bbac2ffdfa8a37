"""Calls of gRPC as recordings keep them. Each request of a stream is kept as a call of its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.framing import framed
from modelserver.ext.grpc.statuses import http_class
from modelserver.ext.grpc.watched.watching import Watcher
from modelserver.ext.recording.entries import CALL, GRPC, lines_of_call
from modelserver.ext.recording.recorder import Parts

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.ext.grpc.call import Call
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.ext.recording.recorder import Recorder, Recording


# Milliseconds: what a timeout's eight digits can say.
_LONGEST = 99_999_999


class Outcome(NamedTuple):
    """What a client got, as :class:`modelserver.ext.recording.entries.Call` has it.

    ``nbytes``: of the answer, of which parts beyond the largest are not kept.
    """

    status: int
    lines: bytes
    answer: bytes = b""
    parts: int = 0
    complete: bool = True
    nbytes: int = 0


class Noting(Watcher):
    """Tells the outcome."""

    __slots__ = ("_parts", "_request")

    def __init__(self) -> None:
        self._request: Request | None = None
        self._parts: Parts | None = None

    @abstractmethod
    def ended(self, outcome: Outcome) -> None:
        """The request is answered, has failed, or nobody waits for it."""

    def new_parts(self) -> Parts:
        """What keeps the parts of an answer."""
        return Parts()

    def queued(self, request: Request) -> None:
        self._request = request

    def sent(self, part: AnyMessage) -> None:
        if self._parts is None:
            self._parts = self.new_parts()
        self._parts.add(framed(part.SerializeToString()))

    def answered(self, answer: AnyMessage | None, request: Request, batch_id: str | None) -> None:
        lines = lines_of_call(StatusCode.OK, _batch_and_timing(request))
        status, parts = http_class(StatusCode.OK), self._parts
        if answer is not None:
            content = framed(answer.SerializeToString())
            self.ended(Outcome(status, lines, content, nbytes=len(content)))
        elif parts is not None:
            self.ended(Outcome(status, lines, parts.take(), parts.count, nbytes=parts.sent))
        else:
            self.ended(Outcome(status, lines))

    def failed(self, code: StatusCode, text: str) -> None:
        request = self._request
        told = _batch_and_timing(request) if request is not None and request.batch_id else ""
        lines = lines_of_call(code, told)
        is_first = self._parts is None
        self._drop_parts()
        self.ended(Outcome(http_class(code), lines, text.encode(), complete=is_first))

    def left(self) -> None:
        self._drop_parts()
        self.ended(Outcome(0, b"", complete=False))

    def _drop_parts(self) -> None:
        if self._parts is not None:
            self._parts.drop()


class RecordingWatch:
    """Records requests for models that are asked for, while somebody records."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, path: str, asked: AnyMessage, call: Call) -> Watcher | None:
        recording = self._recorder.now
        if recording is None or not recording.wants(asked.model_name):
            return None
        return _Recorded(recording, path, asked, call)


class _Recorded(Noting):
    __slots__ = ("_asked", "_at", "_call", "_number", "_path", "_recording")

    def __init__(self, recording: Recording, path: str, asked: AnyMessage, call: Call) -> None:
        super().__init__()
        self._recording = recording
        # A request of a stream is sent again alone.
        self._path = path.removesuffix("2")
        self._asked = asked
        self._call = call
        self._number = 0
        self._at = recording.clock()

    def queued(self, request: Request) -> None:
        super().queued(request)
        self._number = self._recording.queued()

    def new_parts(self) -> Parts:
        return Parts(self._recording)

    def ended(self, outcome: Outcome) -> None:
        recording, head = self._recording, self._call.head
        if self._parts is not None and self._parts.is_lost:
            recording.drop()
            return
        body: bytes = self._asked.SerializeToString()
        headers = [pair for pair in head.headers if recording.headers[pair[0]]]
        if head.timeout is not None:
            headers.append((b"grpc-timeout", b"%dm" % min(head.timeout * 1e3, _LONGEST)))
        recording.add(
            (
                CALL,
                self._number,
                self._at - recording.began,
                recording.clock() - self._at,
                GRPC,
                self._path,
                self._asked.model_name or None,
                self._asked.model_version or None,
                headers,
                body,
                outcome.status,
                "application/grpc",
                outcome.lines,
                outcome.answer,
                outcome.parts,
                outcome.complete,
            ),
            len(body) + outcome.nbytes,
        )


def _batch_and_timing(request: Request) -> str:
    """As the lines of answers over REST."""
    return (
        f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"
        f"server-timing: queue;dur={request.queued * 1e3:.3f}, "
        f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
    )
