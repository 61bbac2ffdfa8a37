"""Requests and calls over gRPC as :mod:`modelserver.surface.watching` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modelserver.engine.batching.request import Request
from modelserver.errors import ModelServerError
from modelserver.ext.grpc.framing import GRPC, message_framed
from modelserver.ext.grpc.messages import AnyMessage
from modelserver.ext.grpc.statuses import FAILED, StatusCode, ToStatus, http_status
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.routes import Route
from modelserver.surface.watching import Watch, Watcher

if TYPE_CHECKING:
    from modelserver.ext.grpc.call import GrpcCall

# Milliseconds: the largest timeout of gRPC's eight digits.
_LONGEST = 99_999_999
_NOBODY = Watcher()


class WatchedCall:
    """A call as its watcher sees it; see :class:`modelserver.surface.watching.Watched`.

    ``path`` is `/service/method`. ``message`` is its request, or one of its stream; None for the call as a
    whole, whose watcher learns of all its requests.
    """

    method = GRPC
    is_rpc = True

    def __init__(self, path: str, call: GrpcCall, message: AnyMessage | None = None) -> None:
        model, version = ("", "") if message is None else (message.model_name, message.model_version)
        self.target = Target(path, b"", path, Route(model, version or None))
        self.content_type = "" if message is None else content_type_of(message)
        self.request_id = ""
        self.started = call.arrived
        self.has_traceparent = True
        timeout = call.head.timeout
        self.deadline_ms = 0 if timeout is None else int(min(timeout * 1e3, _LONGEST))
        self.code: int | None = None
        # The class of the parts of its answer, once there are some.
        self.part_type: type[AnyMessage] | None = None
        self._call = call
        self._message = message

    def __str__(self) -> str:
        return self.target.path[1:]

    @property
    def body(self) -> bytes:
        content: bytes = b"" if self._message is None else self._message.SerializeToString()
        return content

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._call.head.headers

    def attributes(self) -> dict[str, str | int]:
        service, _, method = str(self).partition("/")
        return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}

    def replace_header(self, name: bytes, value: bytes) -> None:
        """Replaces the trace context that handlers receive; other headers are ignored."""
        if name == b"traceparent":
            own = (pair for pair in self._call.head.metadata if pair[0] != "traceparent")
            self._call.head = replace(self._call.head, metadata=(*own, ("traceparent", value)))

    def note_trace(self, trace_id: str, note: Callable[[str, str], None]) -> None:
        note(self.request_id, trace_id)

    def framed(self, part: bytes) -> bytes:
        return message_framed(part)

    def join(self, parts: Sequence[bytes]) -> bytes:
        """One message with the predictions of all."""
        assert self.part_type is not None  # noqa: S101 - there are parts
        messages = [self.part_type.FromString(part) for part in parts]
        last = messages[-1]
        # The last part is sent already; its other fields apply to the whole answer.
        last.prediction = b"".join(message.prediction for message in messages)
        content: bytes = last.SerializeToString()
        return content


class WatchedRequest:
    """A request of a call, as a context: an error that leaves it is the request's."""

    __slots__ = ("_has_started", "_request", "_to_status", "_watched", "_watcher")

    def __init__(
        self, watch: Watch | None, path: str, message: AnyMessage, call: GrpcCall, to_status: ToStatus
    ) -> None:
        """``to_status`` maps errors to statuses."""
        self._to_status = to_status
        self._watcher = _NOBODY
        self._request: Request | None = None
        self._has_started = False
        if watch is not None:
            self._watched = WatchedCall(path, call, message)
            self._watcher = watch(self._watched) or _NOBODY

    def __enter__(self) -> WatchedRequest:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error is None or self._watcher is _NOBODY:
            return
        if isinstance(error, Exception):
            is_known = isinstance(error, ModelServerError)
            self._failed(*(self._to_status(error) if is_known else (StatusCode.INTERNAL, FAILED)))  # type: ignore[arg-type]  # known by then
        else:
            self._watcher.left()

    def _failed(self, code: StatusCode, text: str) -> None:
        request = self._request
        lines = header_lines(code, request if request is not None and request.batch_id else None)
        self._watched.code = int(code)
        self._watcher.replied(http_status(code), text.encode(), "text/plain", lines)

    def queued(self, request: Request, model: Any) -> None:
        """The request is about to be queued."""
        self._request = request
        self._watcher.queued(request, model)

    def part(self, part: AnyMessage) -> None:
        """A part of its answer is about to be sent."""
        if self._watcher is _NOBODY:
            return
        if not self._has_started:
            self._has_started = True
            self._watched.part_type = type(part)
            self._watcher.started(200, content_type_of(part), b"")
        self._watcher.part(part.SerializeToString())

    def answered(self, answer: AnyMessage | None, request: Request) -> None:
        """The whole answer, or the end of one in parts."""
        if self._watcher is _NOBODY:
            return
        lines = header_lines(StatusCode.OK, request)
        self._watched.code = int(StatusCode.OK)
        if answer is not None:
            self._watcher.replied(200, answer.SerializeToString(), content_type_of(answer), lines)
        elif self._has_started:
            self._watcher.ended(True, lines)
        else:
            self._watcher.replied(200, b"", "", lines)


class WholeCall:
    """A call that is watched as a whole."""

    def __init__(self, watched: WatchedCall, watcher: Watcher, call: GrpcCall) -> None:
        self._watched = watched
        self._watcher = watcher
        self._call = call
        call.on_queued = self._queued

    @classmethod
    def of(cls, watch: Watch, path: str, call: GrpcCall) -> WholeCall | None:
        """The call, if anybody watches it."""
        watched = WatchedCall(path, call)
        watcher = watch(watched)
        return None if watcher is None else cls(watched, watcher, call)

    def _queued(self, request: Request, model: Any) -> None:
        self._watched.request_id = self._watched.request_id or request.id
        self._watcher.queued(request, model)

    @property
    def request_id(self) -> str:
        """The id of its first request, empty if there was none."""
        return self._watched.request_id

    def finish(self, code: StatusCode, request_id: str) -> None:
        """The call has ended, and is known by this id."""
        # The call and this object refer to each other.
        self._call.on_queued = None
        self._watched.request_id = request_id
        self._watched.code = int(code)
        self._watcher.replied(http_status(code), b"", "", header_lines(code, None))


def content_type_of(message: AnyMessage) -> str:
    """The content type that names a message."""
    return f"application/protobuf; proto={message.DESCRIPTOR.full_name}"


def header_lines(code: StatusCode, request: Request | None) -> bytes:
    """The header lines that a REST response would have, with the status."""
    lines = f"grpc-status: {int(code)}\r\n"
    if request is not None:
        lines += (
            f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"
            f"server-timing: queue;dur={request.queued * 1e3:.3f}, "
            f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
        )
    return lines.encode("latin-1")
