"""Checks tokens by their hashes alone.

Front-end processes check tokens too: the hashes that they get cannot be used as tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from urllib.parse import unquote

import httptools

from modelserver.errors import BadRequest
from modelserver.surface.auth.scopes import Scope, needed_scope, strictest_scope

_REASON = "failed. Token either incorrect, expired, or not provided correctly"
_BEARER = re.compile(rb"Bearer\s+(\S+)")


class InvalidKey(BadRequest):
    """The token is missing, malformed, wrong or expired: 400 with TorchServe's words (reference 16.2)."""

    type = "InvalidKeyException"
    openai_status = 401
    openai_code = "invalid_api_key"

    def __init__(self, scope: Scope) -> None:
        # TorchServe says "Authentication" at /token and "Authorization" everywhere else.
        what = "Authentication" if scope is Scope.API else "Authorization"
        super().__init__(f"Token {what} {_REASON}")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The SHA-256 of a token that is valid until ``expires`` (seconds of the clock; None: for ever)."""

    scope: Scope
    digest: bytes = field(repr=False)
    expires: float | None = None

    @classmethod
    def of(cls, scope: Scope, token: str, expires: float | None = None) -> Fingerprint:
        return cls(scope, sha256(token.encode()).digest(), expires)


class Verifier:
    """Checks the ``Authorization`` header, in a time that reveals nothing about the tokens.

    It caches the last valid header of each scope: a client that sends the same again costs one comparison.

    Args:
        clock: seconds, of the same clock as the fingerprints' ``expires``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fingerprints: tuple[Fingerprint, ...] = ()
        self._last: dict[Scope, tuple[bytes, float]] = {}

    def replace(self, fingerprints: Iterable[Fingerprint]) -> None:
        """Only these are valid from now on."""
        self._fingerprints = tuple(fingerprints)
        self._last.clear()

    def accepts(self, scope: Scope, header: bytes) -> bool:
        """Whether the value of the header, ``Bearer <token>``, is valid for the scope now."""
        last = self._last.get(scope)
        if last is not None and compare_digest(header, last[0]):
            return self._clock() < last[1]
        match = _BEARER.fullmatch(header.strip())
        return match is not None and self._look_up(scope, header, sha256(match[1]).digest())

    def authorize(self, scope: Scope, header: str | bytes | None) -> None:
        """Checks a header or a gRPC metadata value; None: there is none. Raises InvalidKey."""
        value = header.encode("utf-8", "replace") if isinstance(header, str) else header
        if value is None or not self.accepts(scope, value):
            raise InvalidKey(scope)

    def _look_up(self, scope: Scope, header: bytes, digest: bytes) -> bool:
        until = -math.inf
        for one in self._fingerprints:
            if compare_digest(one.digest, digest) and one.scope is scope:
                until = max(until, math.inf if one.expires is None else one.expires)
        if self._clock() >= until:
            return False
        self._last[scope] = (header, until)
        return True


# Checks the token of each request of a listener before anything else reads the request.

# How many URLs have their scope cached, and the bytes of the longest of them.
_CACHED = 1024
_LONGEST_CACHED = 512
_HEADER = b"authorization"


class Guard:
    """Passes requests that have the token they need; as in TorchServe, before routing.

    Args:
        verifier: checks the tokens.
        roles: of the listener.
        ping_token: whether ``/ping`` needs a token.
    """

    def __init__(self, verifier: Verifier, roles: AbstractSet[str], *, ping_token: bool) -> None:
        self._verifier = verifier
        self._roles = frozenset(roles)
        self._ping_token = ping_token
        self._cached_scope = lru_cache(_CACHED)(self._scope)

    def check(self, method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> InvalidKey | None:
        """The error to answer with, None if the request may pass. ``url`` is from the first line."""
        scope = (self._cached_scope if len(url) <= _LONGEST_CACHED else self._scope)(method, url)
        if scope is None:
            return None
        for name, value in headers:
            if len(name) == len(_HEADER) and name.lower() == _HEADER:
                return None if self._verifier.accepts(scope, value) else InvalidKey(scope)
        return InvalidKey(scope)

    def _scope(self, method: bytes, url: bytes) -> Scope | None:
        try:
            path = httptools.parse_url(url).path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return strictest_scope(self._roles)
        return needed_scope(self._roles, method.decode(), unquote(path), ping_token=self._ping_token)
