"""TorchServe's gRPC services: what both servers are asked there, and how.

A call's path is that of the method, with the fields of its message as a query; its body is the input
``data``. With the header :data:`MESSAGE` the body is the whole message. A status is told as the HTTP status
of the same meaning, with the code's name as the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from google.protobuf import json_format

from modelserver.ext.grpc.framing import message_framed
from modelserver.ext.grpc.http2.frames import Http2Error
from modelserver.ext.grpc.messages import DecodeError, message_class, service
from modelserver.ext.grpc.statuses import StatusCode, http_status
from modelserver.tools.grpc_client import messages_of, send_call
from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import PATIENCE, Port, Probe, Response

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

METHOD: Final = "gRPC"
MESSAGE: Final = ("content-type", "application/grpc")
OPEN_INFERENCE: Final = "inference.GRPCInferenceService"
INFERENCE: Final = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT: Final = "org.pytorch.serve.grpc.management.ManagementAPIsService"
_STREAMS: Final = "send_intermediate_predict_response"


def general(nobody: str) -> Iterator[Probe]:
    """Yields requests that every server can answer; no model is named ``nobody``."""
    yield _inference("Ping")
    yield _inference("Predictions", b"x", model_name=nobody)
    yield _management("ListModels", limit=100)
    yield _management("DescribeModel", model_name=nobody)


def about(name: str, number: str, archive: Archive | None, bodies: Iterable[bytes]) -> Iterator[Probe]:
    """Yields requests for version ``number`` of a model.

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


def _inference(method: str, body: bytes = b"", **fields: object) -> Probe:
    return _call("grpc_inference", INFERENCE, method, body, fields)


def _management(method: str, **fields: object) -> Probe:
    return _call("grpc_management", MANAGEMENT, method, b"", fields)


def _call(port: Port, of: str, method: str, body: bytes, fields: dict[str, object]) -> Probe:
    query = f"?{urlencode(fields)}" if fields else ""
    return Probe(f"{method}{query} (gRPC)", port, METHOD, f"/{of}/{method}{query}", (), body)


def of_message(path: str, headers: tuple[tuple[str, str], ...], message: bytes) -> Probe:
    """A recorded call; the message stays whole unless its fields and its input ``data`` are all of it."""
    method = method_of(path)
    made = message_class(method.input_type).FromString(message)
    fields: dict[str, object] = {
        each.name: value for each, value in made.ListFields() if isinstance(value, str)
    }
    body = made.input["data"] if "input" in method.input_type.fields_by_name else b""
    if message_class(method.input_type).FromString(message_of(method, urlencode(fields), body)) == made:
        call = _call("grpc_inference", method.containing_service.full_name, method.name, body, fields)
        return replace(call, headers=headers)
    return Probe(f"{method.name} (gRPC)", "grpc_inference", METHOD, path, (*headers, MESSAGE), message)


def send(call: Probe, address: tuple[str, int]) -> Response:
    """Its answer; status 0 if there was none. A stream's messages are joined and counted."""
    path, _, query = call.path.partition("?")
    headers = [(name.lower().encode(), value.encode()) for name, value in call.headers if name != MESSAGE[0]]
    try:
        method = method_of(path)
        message = call.body if MESSAGE in call.headers else message_of(method, query, call.body)
        url = "http://{}:{}{}".format(*address, path)
        code, text, content = asyncio.run(send_call(url, headers, message_framed(message), PATIENCE))
        messages = [_content(method, each) for each in messages_of(content)]
    except (OSError, asyncio.TimeoutError, Http2Error, LookupError, ValueError, DecodeError) as error:
        return Response(0, type(error).__name__, {}, b"")
    body = text if code is not StatusCode.OK and not messages else b"".join(messages)
    headers_back = {"grpc-messages": str(len(messages))} if method.server_streaming else {}
    return Response(http_status(code), code.name, headers_back, body)


def method_of(path: str) -> MethodDescriptor:
    """The method that a path names. Raises KeyError."""
    of, _, name = path.removeprefix("/").partition("/")
    return service(of).methods_by_name[name]


def message_of(method: MethodDescriptor, query: str, body: bytes) -> bytes:
    """The bytes of the message with these fields, and this input if it has one."""
    made = message_class(method.input_type)()
    for name, value in parse_qsl(query):
        setattr(made, name, type(getattr(made, name))(value))
    if "input" in method.input_type.fields_by_name:
        made.input["data"] = body
    return bytes(made.SerializeToString())


def _content(method: MethodDescriptor, message: bytes) -> bytes:
    """The first field of an answer, which is all of it: ``prediction``, ``health`` or ``msg``; or the answer
    of the Open Inference Protocol as JSON.
    """
    answer = message_class(method.output_type).FromString(message)
    if method.containing_service.full_name == OPEN_INFERENCE:
        return json_format.MessageToJson(answer, preserving_proto_field_name=True).encode()
    value = getattr(answer, method.output_type.fields[0].name)
    return value if isinstance(value, bytes) else str(value).encode()
