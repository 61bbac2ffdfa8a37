"""Checks that a well-formed head is unambiguous too.

Requests can be smuggled past a proxy if two readers understand a length or host differently (RFC 9112, 3.2,
6.1, 11.2): such requests are refused before anything else is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelserver.errors import BadRequest, ModelServerError

HEADER_LIMIT = 65536
SUPPORTED_VERSIONS = ("1.1", "1.0")
# Digits of a content length, leading zeros included: more than any body needs.
_MOST_DIGITS = 19

_HOST = b"host"
_CONTENT_LENGTH = b"content-length"
_TRANSFER_ENCODING = b"transfer-encoding"
# By length, which few other headers have: a cheap test for each header of each request.
_WATCHED = {len(name): name for name in (_HOST, _CONTENT_LENGTH, _TRANSFER_ENCODING)}


class HeadersTooLarge(BadRequest):
    """The head is larger than ``HEADER_LIMIT``."""

    status = 431

    def __init__(self) -> None:
        super().__init__(f"The request's headers are over the limit of {HEADER_LIMIT} bytes.")


class UnknownCoding(ModelServerError):
    """A transfer coding besides ``chunked``: the end of the body is uncertain."""

    status = 501
    type = "NotImplementedException"

    def __init__(self, coding: bytes) -> None:
        super().__init__(f"The transfer coding {coding[:40].decode('latin-1')!r} is not known: chunked is.")


class UnsupportedVersion(ModelServerError):
    """A version of HTTP that is not spoken here."""

    status = 505
    type = "HttpVersionNotSupportedException"

    def __init__(self, version: str) -> None:
        super().__init__(f"HTTP/{version} is not supported here: HTTP/1.1 and HTTP/1.0 are.")


def invalid_message() -> BadRequest:
    """The error for what is not HTTP."""
    return BadRequest("Invalid HTTP message.")


def fault_of(headers: Sequence[tuple[bytes, bytes]], version: str) -> ModelServerError | None:
    """Why a request with these headers is refused, None if it is not; ``version`` is 1.0 or 1.1."""
    hosts = 0
    codings = b""
    for name, value in headers:
        watched = _WATCHED.get(len(name))
        if watched is None or name.lower() != watched:
            continue
        if watched is _HOST:
            hosts += 1
        elif watched is _TRANSFER_ENCODING:
            codings = b"%b, %b" % (codings, value) if codings else value
        elif not value.isdigit() or len(value) > _MOST_DIGITS:
            return BadRequest(f"The content length {value[:40].decode('latin-1')!r} is none.")
    if codings and codings.strip().lower() != b"chunked":
        # Unless the last coding is chunked, the end of the body is unknown.
        ends = codings.rpartition(b",")[2].strip().lower() == b"chunked"
        return UnknownCoding(codings) if ends else invalid_message()
    if version == "1.0":
        return BadRequest("A request of HTTP/1.0 cannot have a transfer coding.") if codings else None
    if hosts != 1:
        return BadRequest(f"A request has one Host header, this one has {hosts}.")
    return None


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The content length in headers that ``fault_of`` accepts; 0 without one."""
    return next((int(value) for name, value in headers if name.lower() == _CONTENT_LENGTH), 0)
