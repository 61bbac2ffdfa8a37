"""Whether an answer is the recorded one: byte by byte, or number by number within a tolerance."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict

from modelserver.engine.tensors.datatypes import DATATYPES
from modelserver.ext.grpc.framing import GRPC
from modelserver.ext.grpc.messages import DecodeError, message
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.ext.recording.entries import Call, code_of
from modelserver.ext.rollout.agreement import Tolerance, agree, excerpt, pairs, place, short, without_ids
from modelserver.tools.grpc_client import messages_of
from modelserver.tools.http_client import TimedResponse

# Fields that differ between any two answers.
_ANEW: Final = frozenset({"batchId", "request_id"})
_Infer, _Inferred = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
# A suffix of some failures' texts.
_REQUEST_ID = re.compile(rb" \[request [^]]*\]")


def difference(call: Call, answered: TimedResponse, tolerance: Tolerance) -> str:
    """How the answer differs from the recorded one; empty if it does not."""
    if answered.fault:
        return answered.fault
    was, is_now = (_status(each.status, each.lines) for each in (call, answered))
    if was != is_now:
        return f"status {was} became {is_now}: {_text(answered.body)}"
    bodies = [without_ids(body_of(call, each)) for each in (call.answer, answered.body)]
    if bodies[0] == bodies[1] or call.method == b"HEAD":
        return ""
    then, now = (document_of(call, body) for body in bodies)
    if then is None or now is None:
        return " became ".join(map(_text, bodies))
    (then_json, then_rest), (now_json, now_rest) = then, now
    ignored = _ANEW | {"id"} if gets_id(call) else _ANEW
    for document in (then_json, now_json):
        if isinstance(document, dict):
            for name in ignored & document.keys():
                del document[name]
    for path, before, after in pairs(then_json, now_json):
        if not agree(before, after, tolerance):
            where = f"{place(path)}: " if path else ""
            return f"{where}{excerpt(before)} became {excerpt(after)}"
    return _rests(then_json, then_rest, now_rest, tolerance)


def _status(status: int, lines: bytes) -> str:
    """The status that the client received: the number of HTTP, or the name of gRPC."""
    code = code_of(lines)
    return str(status) if code is None else StatusCode(code).name


def _rests(document: Any, then: bytes, now: bytes, tolerance: Tolerance) -> str:
    """The tensors after the JSON, where they are numbers of equal shapes."""
    if then == now:
        return ""
    if len(then) != len(now):
        return f"{len(then)} bytes of tensors became {len(now)}"
    start = 0
    for output in document.get("outputs", ()) if isinstance(document, dict) else ():
        size = (output.get("parameters") or {}).get("binary_data_size", 0)
        kind = DATATYPES.get(output.get("datatype", ""))
        one, other = then[start : start + size], now[start : start + size]
        start += size
        if one == other:
            continue
        if kind is None or kind.json_type is bool or size % kind.width:
            return f"output {output.get('name')}: its bytes differ"
        both = (kind.unpack(memoryview(data)) for data in (one, other))
        for at, (a, b) in enumerate(zip(*both, strict=True)):
            if not tolerance.admits(a, b):
                return f"output {output.get('name')}[{at}]: {a:g} became {b:g}"
    return "" if start == len(then) else "the bytes after the JSON differ"


def _text(body: bytes) -> str:
    return short(repr(" ".join(body.decode("utf-8", "replace").split())))


class Document(NamedTuple):
    """``rest`` are the tensors in binary, whose sizes the parameters of the outputs tell."""

    json: Any
    rest: bytes


def body_of(call: Call, answer: bytes) -> bytes:
    """Returns the answer's body as over REST; for the Open Inference Protocol over gRPC, the message."""
    if call.method != GRPC:
        return answer
    try:
        messages = list(messages_of(answer))
        if _infers(call):
            return b"".join(messages)
        return b"".join(_Predicted.FromString(each).prediction for each in messages)
    except (ValueError, DecodeError):
        # The answer is the text of a failure.
        return _REQUEST_ID.sub(b"", answer)


def document_of(call: Call, body: bytes) -> Document | None:
    """The body of an answer to the call; None if it is no JSON, and must be the same byte by byte."""
    try:
        return _of_tensors(_Inferred.FromString(body)) if _infers(call) else _of_json(body)
    except (ValueError, RecursionError, DecodeError):
        return None


def gets_id(call: Call) -> bool:
    """Whether the server makes up the answer's id: the request of the Open Inference Protocol had none."""
    if _infers(call):
        try:
            return not _Infer.FromString(call.body).id
        except DecodeError:
            return True
    return call.target.startswith("/v2/") and b'"id"' not in call.body


def _infers(call: Call) -> bool:
    return call.method == GRPC and call.target.endswith("/ModelInfer")


def _of_json(body: bytes) -> Document:
    """The JSON that the body begins with, and what follows, as in V2's binary form. Raises ValueError."""
    text = body.decode("latin-1")
    _, end = json.JSONDecoder().raw_decode(text)
    return Document(json.loads(body[:end]), body[end:])


def _of_tensors(answer: Any) -> Document:
    """The JSON of a message, and its buffers."""
    document = MessageToDict(answer, preserving_proto_field_name=True)
    document.pop("raw_output_contents", None)
    for output, content in zip(document.get("outputs", ()), answer.raw_output_contents, strict=False):
        output.setdefault("parameters", {})["binary_data_size"] = len(content)
    return Document(document, b"".join(answer.raw_output_contents))
