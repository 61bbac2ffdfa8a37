"""Requests of web pages, where nobody asks for tokens (F65).

A page in a browser on this machine can send requests to loopback addresses, and registering runs code.
Browsers name the page's origin in each such request; other clients send no ``Origin``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from modelserver.errors import ModelServerError

if TYPE_CHECKING:
    from collections.abc import Iterable

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ForeignPage(ModelServerError):
    """A page of another origin wants to change something."""

    status = 403
    type = "ForeignOriginException"

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Pages of {origin[:100]} may change nothing here; cors_allowed_origin can allow one, "
            "token_authorization=always asks for tokens instead."
        )


def check_origin(method: str, headers: Iterable[tuple[bytes, bytes]], allowed: str) -> None:
    """Refuses what a page of another origin wants to change.

    A page of this server's own is one at a loopback name, so that no other name that leads here will do.
    ``allowed`` is an origin, ``*`` for all, or nothing. Names of ``headers`` are in lower case.

    Raises:
        ForeignPage: names the origin.
    """
    if method in _READING:
        return
    origin = host = ""
    for name, value in headers:
        if name == b"origin":
            origin = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
    if origin and allowed not in ("*", origin) and not _is_own(origin, host):
        raise ForeignPage(origin)


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.netloc.lower() == host.lower() and parts.hostname in _LOOPBACK
    except ValueError:
        return False
