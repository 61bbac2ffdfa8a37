"""From what a handler returned to the bytes of an answer (reference 7.4)."""

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any

import orjson

_FAST = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_V1 = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")


class Unserializable(TypeError):
    """The handler returned what has no form on the wire."""


def encode_body(value: Any) -> tuple[bytes, str]:
    """A /predictions answer and the content type it deserves; strings and bytes go out as they are.

    Raises:
        Unserializable: the value is neither bytes, text, a tensor nor JSON.
    """
    if isinstance(value, (bytes, bytearray)):
        return bytes(value), ""
    if isinstance(value, str):
        return _encode_text(value), ""
    if _is_tensor(value):
        buffer = io.BytesIO()
        sys.modules["torch"].save(value, buffer)
        return buffer.getvalue(), ""
    return dump_indented(value), "application/json"


def dump_indented(value: Any) -> bytes:
    """``json.dumps(value, indent=2)`` in bytes; the fast encoder where both would write the same."""
    try:
        fast = orjson.dumps(value, option=_FAST)
    except TypeError:
        fast = b"null"
    if fast.isascii() and _is_written_alike(fast):
        return fast
    try:
        return json.dumps(value, indent=2, default=_as_orjson_does).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserializable(str(error)) from error


def _is_written_alike(fast: bytes) -> bool:
    """False for small and large floats, NaN (as null), DEL, or what looks like them in a string.

    These the two encoders write differently. Plain searches, because a pattern takes ten times as long.
    """
    if b"null" in fast or b"0.0000" in fast or b"\x7f" in fast:
        return False
    return b"0e" not in fast.translate(_ALL_DIGITS_ALIKE)


def encode_instance(value: Any) -> bytes:
    """One V1 prediction as compact JSON.

    Bytes are text if they are UTF-8, otherwise base64; tensors and arrays are lists, NaN is null.

    Raises:
        Unserializable: the value has no JSON form.
    """
    if isinstance(value, (bytes, bytearray)):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            value = base64.b64encode(value).decode()
    try:
        return orjson.dumps(value, default=_as_list, option=_V1)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_as_list).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserializable(str(error)) from error


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Unserializable(str(error)) from error


def _as_orjson_does(value: Any) -> Any:
    """What the fast encoder knows beyond JSON (enums, UUIDs, dates) is written alike by the slow one."""
    return orjson.loads(orjson.dumps(value, option=_FAST))


def _as_list(value: Any) -> Any:
    """Tensors, and the arrays that the encoder does not know by itself (such as views in another order)."""
    if _is_tensor(value):
        return value.detach().cpu().tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
