"""TorchServe's gRPC services: what both servers are asked there, and how.

A call's path is that of the method, with the fields of its message as a query; its body is the input
``data``. A status is told as the HTTP status of the same meaning, with the code's name as the reason.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode

from modelserver.grpc.codes import StatusCode
from modelserver.grpc.framing import PREFIX, framed
from modelserver.grpc.messages import DecodeError, message_class, service
from modelserver.grpc.statuses import http_class
from modelserver.http2.client import post
from modelserver.http2.errors import Broken
from modelserver.migrating.calls import PATIENCE, Answer, Call, Port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.descriptor import MethodDescriptor

    from modelserver.migrating.archives import Archive

METHOD: Final = "gRPC"
INFERENCE: Final = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT: Final = "org.pytorch.serve.grpc.management.ManagementAPIsService"
_STREAMS: Final = "send_intermediate_predict_response"
_PREFIX: Final = struct.Struct(">BI")


def general(nobody: str) -> Iterator[Call]:
    """What is asked whatever is served; no model is named ``nobody``."""
    yield _inference("Ping")
    yield _inference("Predictions", b"x", model_name=nobody)
    yield _management("ListModels", limit=100)
    yield _management("DescribeModel", model_name=nobody)


def about(name: str, number: str, archive: Archive | None, bodies: Iterable[bytes]) -> Iterator[Call]:
    """What is asked of version ``number`` of a model.

    ``StreamPredictions`` if its handler sends parts, otherwise ``Predictions``: each method breaks
    TorchServe's worker with handlers of the other kind.
    """
    streams = archive is not None and any(each.endswith(f".{_STREAMS}") for each in archive.ts_names)
    method = "StreamPredictions" if streams else "Predictions"
    bodies = list(bodies)
    for fields in ({"model_name": name}, {"model_name": name, "model_version": number}):
        yield _management("DescribeModel", **fields)
        yield from (_inference(method, body, **fields) for body in bodies)
    absent = {"model_name": name, "model_version": "0.0.404"}
    yield _management("DescribeModel", **absent)
    yield _inference(method, bodies[0], **absent)


def _inference(method: str, body: bytes = b"", **fields: object) -> Call:
    return _call("grpc_inference", INFERENCE, method, body, fields)


def _management(method: str, **fields: object) -> Call:
    return _call("grpc_management", MANAGEMENT, method, b"", fields)


def _call(port: Port, of: str, method: str, body: bytes, fields: dict[str, object]) -> Call:
    query = f"?{urlencode(fields)}" if fields else ""
    return Call(f"{method}{query} (gRPC)", port, METHOD, f"/{of}/{method}{query}", (), body)


def send(call: Call, address: tuple[str, int]) -> Answer:
    """Its answer; status 0 if there was none. A stream's messages are joined and counted."""
    path, _, query = call.path.partition("?")
    headers = [(name.lower().encode(), value.encode()) for name, value in call.headers]
    headers += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    method = method_of(path)
    try:
        reply = post(address, path, headers, framed(message_of(method, query, call.body)), PATIENCE)
        code = StatusCode(int(reply.fields[b"grpc-status"]))
        messages = [_content(method, each) for each in _messages(reply.body)]
    except (OSError, Broken, LookupError, ValueError, DecodeError, struct.error) as error:
        return Answer(0, type(error).__name__, {}, b"")
    said = unquote(reply.fields.get(b"grpc-message", b"").decode("latin-1")).encode()
    body = said if code is not StatusCode.OK and not messages else b"".join(messages)
    headers_back = {"grpc-messages": str(len(messages))} if method.server_streaming else {}
    return Answer(http_class(code), code.name, headers_back, body)


def method_of(path: str) -> MethodDescriptor:
    """By its path. Raises KeyError."""
    of, _, name = path.removeprefix("/").partition("/")
    return service(of).methods_by_name[name]


def message_of(method: MethodDescriptor, query: str, body: bytes) -> bytes:
    """The bytes of the message with these fields, and this input if it has one."""
    made = message_class(method.input_type)()
    for name, value in parse_qsl(query):
        setattr(made, name, type(getattr(made, name))(value))
    if "input" in method.input_type.fields_by_name:
        made.input["data"] = body
    content: bytes = made.SerializeToString()
    return content


def _messages(body: bytes) -> Iterator[bytes]:
    """Raises ValueError for one that is compressed, or cut off."""
    while body:
        flag, size = _PREFIX.unpack_from(body)
        if flag or len(body) < PREFIX + size:
            raise ValueError("a message cannot be read")
        yield body[PREFIX : PREFIX + size]
        body = body[PREFIX + size :]


def _content(method: MethodDescriptor, message: bytes) -> bytes:
    """The first field of an answer, which is all of it: ``prediction``, ``health`` or ``msg``."""
    answer = message_class(method.output_type).FromString(message)
    value = getattr(answer, method.output_type.fields[0].name)
    return value if isinstance(value, bytes) else str(value).encode()
