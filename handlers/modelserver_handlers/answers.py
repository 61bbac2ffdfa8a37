"""Encodes what a handler returned as the bytes of an answer (reference 7.4)."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import orjson

from modelserver_handlers.arrays import is_tensor

_FAST = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_V1 = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

# The content types of answers: of a value, a text, and bytes.
JSON, TEXT, OCTETS = "application/json", "text/plain; charset=utf-8", "application/octet-stream"

_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")


class Unserializable(TypeError):
    """The handler returned a value that cannot be encoded."""


def encode_body(value: Any, *, lists: bool = False) -> tuple[bytes, str]:
    """A /predictions answer and its content type; text and bytes are unchanged. Raises Unserializable.

    With ``lists``, tensors and arrays are JSON lists; otherwise a tensor is what torch saves, and arrays are
    refused, as in TorchServe.
    """
    if isinstance(value, (bytes, bytearray)):
        return bytes(value), OCTETS
    if isinstance(value, str):
        return _encode_text(value), TEXT
    if lists:
        return dump_indented(value, _as_lists), JSON
    if is_tensor(value):
        buffer = io.BytesIO()
        sys.modules["torch"].save(value, buffer)
        return buffer.getvalue(), OCTETS
    return dump_indented(value), JSON


def dump_indented(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """``json.dumps(value, indent=2)`` as bytes, by the fast encoder if the result is the same.

    ``default`` converts values that JSON does not have.
    """
    try:
        fast = orjson.dumps(value, default, option=_FAST)
    except TypeError:
        fast = b"null"
    if fast.isascii() and _is_written_alike(fast):
        return fast
    try:
        return json.dumps(value, indent=2, default=default or _as_orjson_does).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserializable(str(error)) from error


def _is_written_alike(fast: bytes) -> bool:
    """False for small and large floats, NaN (as null), DEL, or strings that look like them.

    The two encoders write these differently. Plain searches, as a regular expression takes ten times as long.
    """
    if b"null" in fast or b"0.0000" in fast or b"\x7f" in fast:
        return False
    return b"0e" not in fast.translate(_ALL_DIGITS_ALIKE)


def encode_instance(value: Any) -> bytes:
    """One V1 prediction as compact JSON.

    Bytes are text if they are UTF-8, otherwise base64; tensors and arrays are lists, NaN is null. Raises
    Unserializable.
    """
    if isinstance(value, (bytes, bytearray)):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            value = base64.b64encode(value).decode()
    try:
        return orjson.dumps(value, default=as_list, option=_V1)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=as_list).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserializable(str(error)) from error


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Unserializable(str(error)) from error


def _as_orjson_does(value: Any) -> Any:
    """Encodes types that only the fast encoder supports (enums, UUIDs, dates) the same way."""
    return orjson.loads(orjson.dumps(value, option=_FAST))


def _as_lists(value: Any) -> Any:
    """Also what only the fast encoder supports."""
    return as_list(value) if hasattr(value, "tolist") else _as_orjson_does(value)


def as_list(value: Any) -> Any:
    """Tensors, and arrays that the encoder does not support (such as non-contiguous views)."""
    if is_tensor(value):
        return value.detach().cpu().tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
