"""Answers as documents that can be compared: JSON, and the numbers of tensors that follow it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.json_format import MessageToDict

from modelserver.ext.grpc.client import messages_of
from modelserver.ext.grpc.messages import DecodeError, message
from modelserver.surface.watching import GRPC

if TYPE_CHECKING:
    from modelserver.ext.recording.entries import Call

_Infer, _Inferred = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
# At the end of some failures' texts.
_REQUEST_ID = re.compile(rb" \[request [^]]*\]")


class Document(NamedTuple):
    """``rest`` are the tensors in binary, whose sizes the parameters of the outputs tell."""

    json: Any
    rest: bytes


def body_of(call: Call, answer: bytes) -> bytes:
    """What the answer would be over REST; of the Open Inference Protocol over gRPC it is its message."""
    if call.method != GRPC:
        return answer
    try:
        messages = list(messages_of(answer))
        if _infers(call):
            return b"".join(messages)
        return b"".join(_Predicted.FromString(each).prediction for each in messages)
    except (ValueError, DecodeError):
        # The text of a failure.
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
    """The same of a message, whose buffers are its rest."""
    found = MessageToDict(answer, preserving_proto_field_name=True)
    found.pop("raw_output_contents", None)
    for output, content in zip(found.get("outputs", ()), answer.raw_output_contents, strict=False):
        output.setdefault("parameters", {})["binary_data_size"] = len(content)
    return Document(found, b"".join(answer.raw_output_contents))
