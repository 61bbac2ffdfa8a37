"""Requests of web pages while no tokens are required (F65).

A page in a browser on this machine can send requests to loopback addresses, and registering a model runs
code. Browsers send the page's origin with each such request; other clients send no ``Origin``. Requests that
only read have none, but a page can read only what was asked for under its own name, which ``Host`` tells.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from ipaddress import ip_address
from urllib.parse import urlsplit

from modelserver.errors import ModelServerError
from modelserver.surface.auth.scopes import Scope, needed_scope

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ForeignName(ModelServerError):
    """A page may have been made to lead here under a name of its own."""

    status = 403
    type = "ForeignHostException"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This is not answered under the name {host[:100]!r}: use localhost or an address; "
            "management_hosts can allow a name, token_authorization=always requires tokens instead."
        )


class ForeignPage(ModelServerError):
    """A page of another origin tried to change something."""

    status = 403
    type = "ForeignOriginException"

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Pages of {origin[:100]} may not change anything here; cors_allowed_origin can allow one, "
            "token_authorization=always requires tokens instead."
        )


def check_origin(
    method: str, headers: Iterable[tuple[bytes, bytes]], allowed: str, names: Container[str] = ()
) -> None:
    """Refuses changes by a page of another origin; raises ForeignPage.

    The server's own pages have a loopback name, or one of ``names``: another name that resolves to this
    address is not enough. ``allowed`` is an origin, ``*`` for all, or empty. Names in ``headers`` are in
    lower case.
    """
    if method in _READING:
        return
    origin = host = ""
    for name, value in headers:
        if name == b"origin":
            origin = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
    if origin and allowed not in ("*", origin) and not _is_own(origin, host, names):
        raise ForeignPage(origin)


def tells_about_models(roles: AbstractSet[str], method: str, path: str) -> bool:
    """Whether a path of a listener with these roles is of management or metrics: pages may not read it."""
    scope = needed_scope(roles, method, path, ping_token=False)
    return scope in {Scope.MANAGEMENT, Scope.API} or path.startswith("/metrics")


def check_host(headers: Iterable[tuple[bytes, bytes]], names: Container[str] = ()) -> None:
    """Refuses a request under a name that an attacker's DNS may have made to lead here; raises ForeignName.

    Loopback names, addresses and ``names`` are safe, and so is a request without the header, which no browser
    sends.
    """
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "localhost")
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        if name not in _LOOPBACK and not name.endswith(".localhost") and name not in names:
            ip_address(name)
    except ValueError:
        raise ForeignName(host) from None


def _is_own(origin: str, host: str, names: Container[str]) -> bool:
    try:
        parts = urlsplit(origin)
        is_safe = parts.hostname in _LOOPBACK or parts.hostname in names
        return parts.netloc.lower() == host.lower() and is_safe
    except ValueError:
        return False
