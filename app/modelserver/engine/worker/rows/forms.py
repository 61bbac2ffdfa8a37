"""Form bodies as handlers see them: one key per part; if a name is repeated, the last one (reference 7.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS = 1000


class MalformedForm(ValueError):
    """The body is not what its content type says."""


def parse_urlencoded(body: bytes) -> dict[str, tuple[bytes, str]]:
    """Field name to (value, content type); fields have no content type."""
    fields: dict[str, tuple[bytes, str]] = {}
    pairs = [pair for pair in body.split(b"&") if pair]
    if len(pairs) > MAX_PARTS:
        raise MalformedForm(f"The form has {len(pairs)} fields, {MAX_PARTS} are allowed.")
    for pair in pairs:
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        fields[unquote_to_bytes(name).decode("utf-8", "replace")] = (unquote_to_bytes(value), "")
    return fields


def parse_multipart(body: bytes, content_type: str) -> dict[str, tuple[bytes, str]]:
    """Part name to (content, content type of the part or nothing).

    Raises:
        MalformedForm: no boundary, no end, a part without a name, or too many parts.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise MalformedForm("The multipart body has no boundary in its content type.")
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise MalformedForm(f"The multipart body cannot be read: {error}") from error
    if not parts.ended:
        raise MalformedForm("The multipart body ends before its closing boundary.")
    return parts.fields


class _Parts:
    """Receives the parser's callbacks."""

    def __init__(self) -> None:
        self.fields: dict[str, tuple[bytes, str]] = {}
        self.ended = False
        self._seen = 0
        self._headers: dict[str, bytes] = {}
        self._field = b""
        self._value = b""
        self._content: list[bytes] = []

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._seen += 1
        if self._seen > MAX_PARTS:
            raise MalformedForm(f"The multipart body has more than the {MAX_PARTS} parts that are allowed.")
        self._headers, self._content = {}, []

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value
        self._field = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._content.append(data[start:end])

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        name = options.get(b"name")
        if name is None:
            raise MalformedForm("A part of the multipart body has no name.")
        # As in TorchServe, fields are plain bytes whatever their type, and files always have a type.
        content_type = ""
        if b"filename" in options:
            content_type = self._headers.get("content-type", b"application/octet-stream").decode("latin-1")
        self.fields[name.decode("utf-8", "replace")] = (b"".join(self._content), content_type)

    def _finish(self) -> None:
        self.ended = True
