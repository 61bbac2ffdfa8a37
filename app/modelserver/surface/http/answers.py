"""Status lines, the headers that every answer has, and JSON as TorchServe prints it (reference 4.2, 4.3)."""

from __future__ import annotations

import http
import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from modelserver.engine.telemetry.text import shortened
from modelserver.errors import BadRequest, ModelServerError

# Characters of the message of a client's fault, which may repeat what the client sent.
_LONGEST = 1 << 14

JSON = "application/json"

# Of every answer: it describes a moment and must not be cached, and what a model answers is no script.
ALWAYS = (
    (b"pragma", b"no-cache"),
    (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
    (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
    (b"x-content-type-options", b"nosniff"),
)
ALWAYS_BLOCK = b"".join(name + b": " + value + b"\r\n" for name, value in ALWAYS)

# Handlers cannot set these, as in TorchServe: they belong to the connection or are in every answer.
_RESERVED = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"}) | {
    name.decode() for name, _ in ALWAYS
}


def _standard_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _standard_line(status) for status in range(100, 1000)}


def status_line(status: int, phrase: str = "") -> bytes:
    """The first line of an answer; ``phrase`` replaces the standard one, with spaces for line breaks."""
    if not phrase or status not in STATUS_LINES:
        return STATUS_LINES.get(status) or STATUS_LINES[500]
    return f"HTTP/1.1 {status} {clean(phrase)}\r\n".encode("latin-1", "replace")


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header lines, without line breaks in values (F13) and without headers that handlers cannot set."""
    return b"".join(name + b": " + value + b"\r\n" for name, value in header_pairs(headers))


def header_pairs(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Header names and values as :func:`header_block` writes them."""
    return [
        (clean(name).encode("latin-1", "replace"), clean(value).encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() not in _RESERVED
    ]


def clean(text: str) -> str:
    """Without control characters."""
    if text.isprintable():
        return text
    return "".join(c if c == "\t" or (c >= " " and c != "\x7f") else " " for c in text)


def pretty(value: Any) -> bytes:
    """JSON, indented by two spaces, with a newline at its end and without null fields."""
    return _indented(_without_nulls(value))


def _indented(value: Any) -> bytes:
    try:
        # When indenting, the standard library leaves a reference cycle behind at each call.
        return msgspec.json.format(msgspec.json.encode(value)) + b"\n"
    except (TypeError, ValueError, OverflowError):
        # msgspec is strict with numbers and text.
        pass
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


# Whose form the errors of a path have; those of other paths have TorchServe's.
KSERVE = "kserve"
OPENAI = "openai"
_OF_OPENAI = re.compile(
    r"/openai/|/v1/(?!models\b)|/predictions/[^/]+(/[^/]+)?/v1/"
    r"(models|chat/|completions|embeddings|rerank|score|responses|audio/|tokenize|detokenize)"
)
_OF_LISTS = re.compile(r"/v1/models\b(?!.*:(predict|explain)\b)")


def form_of(path: str, error: ModelServerError | None = None) -> str:
    """The form of errors for the clients of a path: of KServe's protocols, of OpenAI's API, or empty.

    ``error`` came before the path was read. KServe's list of models is OpenAI's list, too, and KServe has no
    tokens: a wrong one has OpenAI's form there.
    """
    if _OF_OPENAI.match(path) or (error is not None and error.openai_status and _OF_LISTS.match(path)):
        return OPENAI
    return KSERVE if path.startswith(("/v1/", "/v2/")) or path == "/v2" else ""


def error_body(error: ModelServerError, *, form: str = "", batch_id: str | None = None) -> tuple[int, bytes]:
    """Status and body of an error, in the form of :func:`form_of`.

    KServe's adds ``error`` to TorchServe's fields.

    ``batch_id`` is for V1 requests to a model that batches, empty if the request was in no batch: the body
    then has the keys of KServe's batcher (kserve reference 2.2).
    """
    status = error.status_in(form)
    message, kserve_message = error.message, error.kserve_message
    if isinstance(error, BadRequest):
        message = shortened(message, _LONGEST)
    if form == OPENAI:
        return status, _openai_error(error, status, error.openai_message or message)
    body: dict[str, object] = {"code": status, "type": error.type, "message": message}
    if form == KSERVE:
        body["error"] = kserve_message or message
    if error.request_id is not None:
        body["request_id"] = error.request_id
    if batch_id is None:
        return status, pretty(body)
    body |= {"batchId": batch_id, "predictions": None}
    return status, _indented(body)


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def _openai_error(error: ModelServerError, status: int, message: str) -> bytes:
    """The body that clients of OpenAI's API read."""
    kind = "server_error" if status >= 500 else _OPENAI_TYPES.get(status, "invalid_request_error")
    fields = {"message": message, "type": kind, "param": None, "code": error.openai_code}
    return msgspec.json.encode({"error": fields})
