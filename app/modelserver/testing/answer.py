"""What a model answered, and how a test's value becomes a body."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

_ARRAYS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_HANDLING = re.compile(r"inference;dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as a client of the server gets it.

    ``headers`` have lower-case names. ``parts`` are the pieces of a body that was streamed, otherwise none.
    ``complete`` is False for a streamed body that broke off.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    parts: tuple[bytes, ...] = ()
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether the model answered, and to the end."""
        return self.status < 400 and self.complete

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The decoded body. Raises ValueError if it is no JSON."""
        return orjson.loads(self.body)

    @property
    def content_type(self) -> str:
        """Its content type, empty without one."""
        return self.headers.get("content-type", "")

    @property
    def batch_size(self) -> int:
        """How many rows the handler got in the same call; 0 if it was not called."""
        return int(self.headers.get("x-batch-size", 0))

    @property
    def handling_ms(self) -> float:
        """Milliseconds that the handler took for the batch; 0.0 if it was not called."""
        match = _HANDLING.search(self.headers.get("server-timing", ""))
        return float(match[1]) if match else 0.0


def as_body(value: Any) -> tuple[bytes, str]:
    """The bytes of a body and its content type, empty for bytes.

    A path is the file's content, text is ``text/plain``, and other values are sent as JSON. Raises OSError
    and TypeError.
    """
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value), ""
        case Path():
            return value.read_bytes(), mimetypes.guess_type(value.name)[0] or ""
        case str():
            return value.encode(), "text/plain; charset=utf-8"
        case _:
            return orjson.dumps(value, option=_ARRAYS), "application/json"
