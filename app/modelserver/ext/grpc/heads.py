"""The heads of calls, and the header fields of their answers (gRPC over HTTP/2)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import quote

from modelserver.ext.grpc.http2.fields import Fields
from modelserver.ext.grpc.http2.frames import field
from modelserver.ext.grpc.statuses import StatusCode

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

# Of the static table: ``:status: 200``.
_STATUS_200 = b"\x88"
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
# What percent-encoding leaves as it is in a message (all that is printable but the percent sign).
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)
# Fields that are gRPC's or HTTP's own, and no metadata.
_OWN = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})

_CONTENT_TYPE = field(b"content-type", b"application/grpc")
OK_HEAD = b"%b%b%b" % (_STATUS_200, _CONTENT_TYPE, field(b"grpc-accept-encoding", b"identity,deflate,gzip"))
OK_TRAILERS = field(b"grpc-status", b"0")


@dataclass(frozen=True, slots=True)
class CallHead:
    """The head of a call: ``path`` is `service/method`, ``timeout`` in seconds; ``wrong``: an HTTP status."""

    path: str
    metadata: Metadata
    timeout: float | None
    encoding: str
    wrong: int

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (name.encode(), value.encode("latin-1", "replace") if isinstance(value, str) else value)
            for name, value in self.metadata
        ]


def read_head(fields: Fields) -> CallHead:
    """Makes a head from the header fields of a request."""
    own: dict[str, str] = {}
    metadata: list[tuple[str, str | bytes]] = []
    for key, text in fields:
        name, value = key.decode("latin-1"), text.decode("latin-1")
        if name.startswith(":") or name in _OWN:
            own[name] = value
        else:
            metadata.append((name, _binary(value) if name.endswith("-bin") else value))
    content = own.get("content-type", "").partition(";")[0]
    timeout = _TIMEOUT.fullmatch(own.get("grpc-timeout", ""))
    wrong = 0
    if own.get(":method") != "POST":
        wrong = 405
    elif content != "application/grpc" and not content.startswith("application/grpc+proto"):
        wrong = 415
    elif timeout is None and "grpc-timeout" in own:
        wrong = 400
    return CallHead(
        own.get(":path", "").removeprefix("/"),
        tuple(metadata),
        int(timeout[1]) * _UNITS[timeout[2]] if timeout else None,
        own.get("grpc-encoding", "identity"),
        wrong,
    )


def _binary(value: str) -> bytes:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except (ValueError, binascii.Error):
        return b""


def http_head(status: int) -> bytes:
    """The head of a response that is not gRPC's; 400: a malformed deadline, with grpc-go's status for it."""
    head = field(b":status", b"%d" % status)
    if status == HTTPStatus.BAD_REQUEST:
        head += _CONTENT_TYPE + trailers(StatusCode.INTERNAL, "malformed grpc-timeout")
    return head


def fields_of(metadata: Iterable[tuple[str, str]]) -> bytes:
    """Metadata as header fields."""
    return b"".join(field(name.encode(), value.encode("latin-1", "replace")) for name, value in metadata)


def trailers(code: StatusCode, text: str) -> bytes:
    """The last fields of a call."""
    fields = field(b"grpc-status", b"%d" % code)
    if text:
        fields += field(b"grpc-message", quote(text, safe=_PRINTABLE, errors="replace").encode())
    return fields
