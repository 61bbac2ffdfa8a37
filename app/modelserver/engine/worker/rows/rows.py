"""Decodes the bytes of a request to the dict for the handler (reference 7.1 to 7.3)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from modelserver.engine.wire.messages import DESCRIBE, FIELDS, INSTANCE, TENSORS, Row
from modelserver.engine.worker.rows.forms import parse_multipart, parse_urlencoded
from modelserver.engine.worker.rows.tensor_rows import decode_rows, tensor_parameters
from modelserver_handlers.envelopes import Instance

_log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


def load_json(text: bytes | memoryview) -> Any:
    """JSON as Python's decoder reads it: integers of any size, NaN and Infinity. Raises ValueError."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(bytes(text))
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


@dataclass(slots=True)
class Decoded:
    """One instance: the handler's data (a dict, except for envelopes), and its parts' content types."""

    data: dict[str, Any] | Instance
    part_types: Mapping[str, str]


def decode_row(row: Row, body: memoryview, *, decode: bool, enveloped: bool = False) -> Decoded:
    """Decodes one instance; ``enveloped``: for an envelope. Raises ValueError if the body is malformed."""
    if row.kind == INSTANCE:
        value = load_json(body)
        if enveloped:
            return Decoded(Instance(value), {})
        return Decoded(value if isinstance(value, dict) else {"body": value}, {})
    if row.kind == DESCRIBE:
        return Decoded({}, {})
    if row.kind == TENSORS:
        return Decoded(decode_rows([row], body)[0], {})
    if row.kind == FIELDS:
        # Without a content type nothing is decoded (reference 20).
        fields = _decode_fields(body)
        return Decoded({name: bytearray(value) for name, value in fields.items()}, dict.fromkeys(fields, ""))
    data: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name, text in row.query or ():
        data[name], types[name] = bytearray(text, "utf-8"), ""
    for name, (content, content_type) in _parts(row, body).items():
        data[name], types[name] = to_value(content, content_type, decode=decode), _essence(content_type)
    return Decoded(data, types)


def _parts(row: Row, body: memoryview) -> Mapping[str, tuple[bytes | memoryview, str]]:
    """Name to (content, content type)."""
    content_type = row.content_type
    kind = _essence(content_type).lower()
    if kind == "multipart/form-data":
        return parse_multipart(bytes(body), content_type)
    if kind == "application/x-www-form-urlencoded":
        return parse_urlencoded(bytes(body))
    return {"body": (body, content_type)}


@lru_cache(256)
def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip()


def to_value(content: bytes | memoryview, content_type: str, *, decode: bool) -> Any:
    """One part's value: decoded for JSON and text, otherwise (or if decoding fails) a bytearray."""
    if decode and content_type:
        kind = _essence(content_type)
        if kind == "application/json":
            try:
                return load_json(content)
            except ValueError as error:
                _log.warning(
                    "A body of type application/json is not valid JSON, the handler gets its bytes: %s", error
                )
        elif kind.startswith("text"):
            try:
                return str(content, "utf-8")
            except UnicodeDecodeError:
                _log.warning("A body of type %s is not UTF-8, the handler gets its bytes", kind)
    return bytearray(content)


def request_headers(row: Row, part_types: Mapping[str, str]) -> list[tuple[str, Any]]:
    """A request's headers in rising precedence: content types of parts, then the client's headers."""
    entries: list[tuple[str, Any]] = [(name, {"content-type": kind}) for name, kind in part_types.items()]
    entries += [(n.decode("latin-1"), v.decode("latin-1")) for n, v in _decode_headers(row.headers)]
    return entries


def request_parameters(row: Row) -> dict[str, Any]:
    """The other top-level fields of a V1 body, or a V2 request's ``parameters`` and those of its ``inputs``
    and ``outputs``. Raises ValueError if they are not JSON.
    """
    if row.kind == TENSORS:
        return tensor_parameters(row.extra)
    parameters: dict[str, Any] = load_json(row.extra) if row.extra else {}
    return parameters
