"""Calls: from bytes to a message, to the method that answers it, to a status that is logged and counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import grpc
from grpc import StatusCode

from modelserver.auth.errors import InvalidKey
from modelserver.errors import BadRequest, ModelServerError, PayloadTooLarge
from modelserver.grpc.encoded import Encoded, Received, is_heavy, texts_of
from modelserver.grpc.messages import Context, DecodeError, message_class, service
from modelserver.grpc.pending import REQUEST_ID, id_of
from modelserver.grpc.statuses import FAILED, Tell, http_class, number
from modelserver.telemetry.stalls import served
from modelserver.tensors.weight import LIGHT_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from google.protobuf.descriptor import Descriptor, MethodDescriptor

    from modelserver.grpc.gate import Gate
    from modelserver.grpc.messages import AnyMessage


_log = logging.getLogger("modelserver.grpc")
# From a message, or an iterator of messages, and the context to a message, or an iterator of messages.
Method: TypeAlias = "Callable[[Any, Context], Any]"
# Called for each call: client, `service/method`, code's number, status of HTTP, seconds, and the id of a
# request that failed.
OnCall: TypeAlias = "Callable[[str, str, int, int, float, str], None]"

# Messages that helpers parse.
_ASIDE = "inference.ModelInferRequest"
# A client that reads so many bytes per second has not stalled. Its buffers, which may hold so many bytes,
# take data without our noticing whether it reads them.
_SLOWEST = 64 << 10
_BUFFERED = 8 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all calls of a server share. ``stopping`` ends streams that wait for their client.

    ``send_timeout``: seconds that a client may take to read a part of an answer; more for a large one.
    """

    on_call: OnCall
    gate: Gate
    stopping: asyncio.Event
    send_timeout: float = 60.0


def handlers(
    name: str, methods: Mapping[str, Method], tell: Tell, surroundings: Surroundings
) -> grpc.GenericRpcHandler:
    """The handlers of a service; ``tell`` maps its errors to statuses. Raises KeyError for other methods."""
    found = service(name).methods_by_name
    if set(found) != set(methods):
        raise KeyError(f"{name} has the methods {', '.join(found)}")
    made = {
        each: _handler(found[each], methods[each], f"{name}/{each}", tell, surroundings) for each in found
    }
    return grpc.method_handlers_generic_handler(name, made)


def _handler(
    descriptor: MethodDescriptor, method: Method, path: str, tell: Tell, surroundings: Surroundings
) -> Any:
    parse = _parser(descriptor)

    async def one(body: bytes, context: Context) -> bytes:
        async with _ended(path, context, tell, surroundings):
            _admit(path, context, surroundings)
            return _bytes(await method(parse(body), context))
        return b""  # not sent, as the call was aborted

    async def many(body: Any, context: Context) -> None:
        async with _ended(path, context, tell, surroundings):
            _admit(path, context, surroundings)
            said = parse(body) if isinstance(body, bytes) else _parsed(body, parse, surroundings.stopping)
            async with contextlib.aclosing(method(said, context)) as answers:
                sender = _Sender(path, context, answers, surroundings.send_timeout)
                async for answer in answers:
                    await sender.send(_bytes(answer))

    if not descriptor.server_streaming:
        return grpc.unary_unary_rpc_method_handler(one)
    make = (
        grpc.stream_stream_rpc_method_handler
        if descriptor.client_streaming
        else grpc.unary_stream_rpc_method_handler
    )
    return make(many)


class _Sender:
    """Sends the parts of an answer, and ends the answer if the client stops reading.

    gRPC for Python cannot end a call that waits for its client: the part being sent stays until the client
    reads it, and then gets the error, or disconnects.
    """

    def __init__(
        self, path: str, context: Context, answers: AsyncGenerator[AnyMessage, None], timeout: float
    ) -> None:
        self._path = path
        self._context = context
        self._answers = answers
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._sent = 0
        self._closing: asyncio.Task[None] | None = None

    async def send(self, part: bytes) -> None:
        """Raises PayloadTooLarge if the client took too long."""
        seconds = self._timeout + (min(self._sent, _BUFFERED) + len(part)) / _SLOWEST
        self._sent += len(part)
        timer = self._loop.call_later(seconds, self._give_up, seconds)
        try:
            await self._context.write(part)
        finally:
            timer.cancel()
        if self._closing is not None:
            await self._closing
            raise PayloadTooLarge(
                f"The client reads too slowly: it read no part of its answer for {seconds:.0f} s."
            )

    def _give_up(self, seconds: float) -> None:
        client = client_address(self._context)
        _log.warning(
            "The call %s of %s ends: its client reads nothing for %.0f s", self._path, client, seconds
        )
        # The iterator is suspended until the part is sent, so it can be closed.
        self._closing = self._loop.create_task(self._answers.aclose())


def _parser(descriptor: MethodDescriptor) -> Callable[[bytes], AnyMessage]:
    """Parses messages here and not in gRPC, which would not tell clients what is wrong (F11)."""
    kind = message_class(descriptor.input_type)
    name = descriptor.input_type.full_name

    def parse(body: bytes) -> AnyMessage:
        if is_heavy(name, body):
            return _unread(descriptor.input_type, body)
        try:
            message = kind.FromString(body)
            return message if len(body) <= LIGHT_BYTES else Received(message, body)
        except DecodeError as error:
            raise BadRequest(f"The message is not of type {name}: {error}") from error

    return parse


def _unread(kind: Descriptor, body: bytes) -> Encoded:
    """A message that is not parsed on the event loop. Raises BadRequest for all but ModelInfer's."""
    if kind.full_name != _ASIDE:
        raise BadRequest(f"The message is too large for a {kind.full_name}.")
    return Encoded(kind, body, texts_of(kind, body))


def _bytes(answer: AnyMessage) -> bytes:
    encoded: bytes = answer.SerializeToString()
    return encoded


async def _parsed(
    bodies: AsyncIterator[bytes], parse: Callable[[bytes], AnyMessage], stopping: asyncio.Event
) -> AsyncIterator[AnyMessage]:
    """The messages of a client, until it has no more or the server stops."""
    stop = asyncio.ensure_future(stopping.wait())
    read: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            read = asyncio.ensure_future(anext(bodies, None))
            await asyncio.wait({stop, read}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done() or (body := read.result()) is None:
                return
            yield parse(body)
    finally:
        for waiting in (stop, read):
            if waiting is not None:
                waiting.cancel()


def _admit(path: str, context: Context, surroundings: Surroundings) -> None:
    surroundings.gate.check(path, context)
    if context.cancelled():
        raise asyncio.CancelledError  # as if it happened later


@contextlib.asynccontextmanager
async def _ended(path: str, context: Context, tell: Tell, surroundings: Surroundings) -> AsyncIterator[None]:
    started = time.monotonic()
    code = StatusCode.OK
    request_id = ""
    served.request = path
    try:
        yield
    except InvalidKey as error:
        code, request_id = StatusCode.PERMISSION_DENIED, id_of(context)
        await _abort(context, code, error.message, request_id)
    except ModelServerError as error:
        code, text = tell(error)
        request_id = error.logged_id or id_of(context)
        await _abort(context, code, text, request_id)
    except (asyncio.CancelledError, grpc.aio.InternalError) as error:
        # InternalError: nothing can be sent, as the client has disconnected.
        left = context.time_remaining()
        late = left is not None and left <= 0.002
        code = StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED
        raise asyncio.CancelledError from error
    except Exception:  # noqa: BLE001 - the client gets a status in any case
        code, request_id = StatusCode.INTERNAL, id_of(context)
        _log.exception("The call %s failed", path)
        await _abort(context, code, FAILED, request_id)
    finally:
        seconds = time.monotonic() - started
        surroundings.on_call(
            client_address(context), path, number(code), http_class(code), seconds, request_id
        )


async def _abort(context: Context, code: StatusCode, text: str, request_id: str) -> None:
    """Ends the call with a status; what the method returns then is not sent.

    gRPC raises the exception again once the method has returned, and keeps it with the call, and the call
    until the next one comes: with its traceback it would keep the message too.
    """
    try:
        await context.abort(code, text, ((REQUEST_ID, request_id),))
    except grpc.aio.AbortError as aborted:
        aborted.__traceback__ = aborted.__context__ = None


def client_address(context: Context) -> str:
    """The peer's address as in the access log: `127.0.0.1:5000`."""
    peer = context.peer()
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in ("ipv4", "ipv6") else peer
