"""Calls: from bytes to a message, to the method that answers it, to a status that is logged and counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.engine.tensors.weight import LIGHT_BYTES
from modelserver.errors import BadRequest, ModelServerError
from modelserver.ext.grpc.call import GrpcCall
from modelserver.ext.grpc.encoded import EncodedMessage, ReceivedMessage, is_heavy, texts_of
from modelserver.ext.grpc.framing import CallRefused
from modelserver.ext.grpc.gate import Gate, Unauthorized
from modelserver.ext.grpc.messages import AnyMessage, DecodeError, message_class, service
from modelserver.ext.grpc.pending import REQUEST_ID, request_id_of
from modelserver.ext.grpc.statuses import FAILED, StatusCode, ToStatus, http_status
from modelserver.ext.grpc.watching import WholeCall
from modelserver.surface.watching import Watch

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor


_log = logging.getLogger("modelserver.grpc")
# From a message, or an iterator of messages, and the call to a message, or an iterator of messages.
Method: TypeAlias = "Callable[[Any, GrpcCall], Any]"

# Calls of models: the names of their methods.
_INFERENCE = frozenset(
    {"Predictions", "StreamPredictions", "StreamPredictions2", "ModelInfer", "ModelStreamInfer"}
)
# Messages that helpers parse.
_ASIDE = "inference.ModelInferRequest"
# Seconds before a deadline within which a call that is cancelled was late.
_LATE = 0.002


@dataclass(frozen=True, slots=True)
class CallContext:
    """The state that all calls of a port share."""

    metrics: ServerMetrics
    access: AccessLog
    gate: Gate
    watch: Watch | None = None


def method_handlers(
    name: str, methods: Mapping[str, Method], to_status: ToStatus, around: CallContext
) -> dict[str, MethodHandler]:
    """The handlers of a service's methods, by path; ``to_status`` maps its errors to statuses.

    Raises KeyError for other methods than the service has.
    """
    descriptors = service(name).methods_by_name
    if set(descriptors) != set(methods):
        raise KeyError(f"{name} has the methods {', '.join(descriptors)}")
    made: dict[str, MethodHandler] = {}
    for each, method in methods.items():
        descriptor, path = descriptors[each], f"{name}/{each}"
        kind = ServerStreaming if descriptor.server_streaming else Unary
        kind = Bidirectional if descriptor.client_streaming else kind
        made[path] = kind(path, _parser(descriptor), method, to_status, around)
    return made


class MethodHandler:
    """Serves the calls of a path."""

    streams = False

    def __init__(
        self,
        path: str,
        parse: Callable[[bytes], AnyMessage],
        method: Method,
        to_status: ToStatus,
        around: CallContext,
    ) -> None:
        self._path = path
        self._parse = parse
        self._method = method
        self._to_status = to_status
        self._around = around

    async def begin(self, call: GrpcCall, body: bytes) -> None:
        """Serves a call to its end, with ``body`` as its message unless it is a stream of messages."""
        loop_watch.request = self._path
        watching = None
        if self._around.watch is not None and self._path.rpartition("/")[2] in _INFERENCE:
            watching = WholeCall.of(self._around.watch, f"/{self._path}", call)
        code, request_id = StatusCode.OK, ""
        try:
            self._around.gate.check(self._path, call)
            _check_active(call)
            await self._serve(call, body)
        except Unauthorized as error:
            code, request_id = StatusCode.PERMISSION_DENIED, request_id_of(call)
            call.finish(code, str(error), ((REQUEST_ID, request_id),))
        except ModelServerError as error:
            code, text = self._to_status(error)
            request_id = error.logged_id or request_id_of(call)
            call.finish(code, text, ((REQUEST_ID, request_id),))
        except CallRefused as error:
            code, request_id = error.code, request_id_of(call)
            call.refuse(error)
        except asyncio.CancelledError:
            code = _code_of_end(call)
            call.finish(code)
            raise
        except Exception:  # noqa: BLE001 - the client gets a status in any case
            code, request_id = StatusCode.INTERNAL, request_id_of(call)
            _log.exception("The call %s failed", self._path)
            call.finish(code, FAILED, ((REQUEST_ID, request_id),))
        finally:
            seconds = time.monotonic() - call.arrived
            if watching is not None:
                request_id = request_id or watching.request_id or request_id_of(call)
                watching.finish(code, request_id)
            # Counted as the HTTP status of the same meaning, and logged with its own code.
            self._around.metrics.response(http_status(code), self._path)
            self._around.access.log(call.client, "gRPC", self._path, "2.0", code, seconds, request_id)

    async def _serve(self, call: GrpcCall, body: bytes) -> None:
        raise NotImplementedError


def _check_active(call: GrpcCall) -> None:
    """Raises CancelledError if nobody waits for the answer, before the task is cancelled."""
    if call.is_cancelled:
        raise asyncio.CancelledError


def _code_of_end(call: GrpcCall) -> StatusCode:
    if call.is_unread:
        return StatusCode.RESOURCE_EXHAUSTED
    left = call.time_remaining()
    return StatusCode.DEADLINE_EXCEEDED if left is not None and left <= _LATE else StatusCode.CANCELLED


class Unary(MethodHandler):
    """One message, one answer."""

    async def _serve(self, call: GrpcCall, body: bytes) -> None:
        answer = await self._method(self._parse(body), call)
        call.answer(answer.SerializeToString())


class ServerStreaming(MethodHandler):
    """One message, answers in parts."""

    async def _serve(self, call: GrpcCall, body: bytes) -> None:
        await self._send(call, self._method(self._parse(body), call))

    async def _send(self, call: GrpcCall, answers: AsyncGenerator[AnyMessage, None]) -> None:
        async with contextlib.aclosing(answers):
            async for answer in answers:
                call.write(answer.SerializeToString())
                await call.room()
                _check_active(call)
        call.finish(StatusCode.OK)


class Bidirectional(ServerStreaming):
    """Messages and answers, as either side likes."""

    streams = True

    async def _serve(self, call: GrpcCall, body: bytes) -> None:
        async with contextlib.aclosing(self._requests(call)) as requests:
            await self._send(call, self._method(requests, call))

    async def _requests(self, call: GrpcCall) -> AsyncGenerator[AnyMessage, None]:
        async for body in call.messages():
            yield self._parse(body)


def _parser(descriptor: MethodDescriptor) -> Callable[[bytes], AnyMessage]:
    """Parses messages here and not in gRPC, which would not tell clients what is wrong (F11)."""
    kind = message_class(descriptor.input_type)
    name = descriptor.input_type.full_name

    def parse(body: bytes) -> AnyMessage:
        if is_heavy(name, body):
            return _unread(descriptor.input_type, body)
        try:
            message = kind.FromString(body)
            return message if len(body) <= LIGHT_BYTES else ReceivedMessage(message, body)
        except DecodeError as error:
            raise BadRequest(f"The message is not of type {name}: {error}") from error

    return parse


def _unread(kind: Descriptor, body: bytes) -> EncodedMessage:
    """A message that is not parsed on the event loop. Raises BadRequest for all but ModelInfer's."""
    if kind.full_name != _ASIDE:
        raise BadRequest(f"The message is too large for a {kind.full_name}.")
    return EncodedMessage(kind, body, texts_of(kind, body))
