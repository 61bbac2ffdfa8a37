"""Texts from client input, cleaned and cut into words (reference 14.4)."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from modelserver_handlers.errors import BadInput

_TAG_OR_ENTITY = re.compile(r"<[^<>]*>|&(?:[a-zA-Z0-9]+|#[0-9]{1,6}|#[xX][0-9a-fA-F]{1,6});")
_NO_WORD = re.compile(r"[^a-zA-Z0-9\s]")


def text_input(row: Any) -> str | list[int]:
    """The text of one row, or the token numbers that it holds instead.

    A row is ``{"data": ...}``, ``{"body": ...}``, ``{"b64": "..."}`` or the value itself: text, bytes of
    UTF-8, or a list of whole numbers. Raises BadInput.
    """
    if isinstance(row, Mapping):
        return _of_mapping(row)
    if isinstance(row, str):
        return row
    if isinstance(row, (bytes, bytearray, memoryview)):
        return _decoded(bytes(row))
    if isinstance(row, list):
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in row):
            raise BadInput("a list must hold token numbers: whole numbers")
        return row
    raise BadInput(f"a text cannot be made of a {'null' if row is None else type(row).__name__}")


def _of_mapping(row: Mapping[Any, Any]) -> str | list[int]:
    for key in ("data", "body"):
        if row.get(key):
            return text_input(row[key])
    if isinstance(row.get("b64"), str) and row["b64"]:
        return _decoded(from_base64(row["b64"]))
    fields = ", ".join(repr(str(key)) for key in list(row)[:5]) or "none"
    raise BadInput(f"no text: 'data', 'body' and 'b64' are missing or empty (fields sent: {fields})")


def _decoded(encoded: bytes) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"the text is not UTF-8: {error}") from None


def from_base64(text: str) -> bytes:
    """The bytes in a text under ``b64``. Raises BadInput."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the text under b64 is not base64") from None


def remove_html(text: str) -> str:
    """Without tags and entities, which are not replaced."""
    return _TAG_OR_ENTITY.sub("", text)


def remove_accents(text: str) -> str:
    """In ASCII: letters lose their accents, what has no ASCII form is removed."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def remove_punctuation(text: str) -> str:
    """Letters, digits and white space only; words around what is removed are joined, as in TorchServe."""
    return _NO_WORD.sub("", text)


def features(words: list[str], longest: int) -> list[tuple[int, int]]:
    """The runs of up to ``longest`` words, shortest first: positions of the first word and of the end."""
    count = len(words)
    return [
        (start, start + length) for length in range(1, longest + 1) for start in range(count - length + 1)
    ]
