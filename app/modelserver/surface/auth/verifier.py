"""Checks tokens by their hashes alone.

Front-end processes check tokens too: the hashes that they get cannot be used as tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Protocol

import msgspec

from modelserver.errors import BadRequest
from modelserver.surface.auth.scopes import Scope

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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Fingerprint]).decode


class Verifier:
    """Checks the ``Authorization`` header, in a time that reveals nothing about the tokens.

    It caches the last valid header of each scope: a client that sends the same again costs one comparison.

    Args:
        clock: seconds, of the clock by which tokens expire.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fingerprints: tuple[Fingerprint, ...] = ()
        self._last: dict[Scope, tuple[bytes, float]] = {}

    def replace(self, tokens: Iterable[tuple[Scope, str, float | None]]) -> None:
        """Only these are valid from now on: each with its scope, until it expires."""
        self._use(Fingerprint.of(*token) for token in tokens)

    def packed(self) -> bytes:
        """What another process needs to accept the same tokens: :meth:`unpack`."""
        return _encode(self._fingerprints)

    def unpack(self, packed: bytes) -> None:
        """Only the tokens that another verifier has packed are valid from now on."""
        self._use(_decode(packed))

    def _use(self, fingerprints: Iterable[Fingerprint]) -> None:
        self._fingerprints = tuple(fingerprints)
        self._last.clear()

    def refusal(self, scope: Scope, header: bytes | None) -> InvalidKey | None:
        """The error for a request with this header; None if it may pass."""
        return None if header is not None and self.accepts(scope, header) else InvalidKey(scope)

    def accepts(self, scope: Scope, header: bytes) -> bool:
        """Whether the value of the header, ``Bearer <token>``, is valid for the scope now."""
        last = self._last.get(scope)
        if last is not None and compare_digest(header, last[0]):
            return self._clock() < last[1]
        match = _BEARER.fullmatch(header.strip())
        return match is not None and self._look_up(scope, header, sha256(match[1]).digest())

    def _look_up(self, scope: Scope, header: bytes, digest: bytes) -> bool:
        until = -math.inf
        for one in self._fingerprints:
            if compare_digest(one.digest, digest) and one.scope is scope:
                until = max(until, math.inf if one.expires is None else one.expires)
        if self._clock() >= until:
            return False
        self._last[scope] = (header, until)
        return True


class RequiredTokens(Protocol):
    """The tokens of a server that requires some; an extension has them."""

    verifier: Verifier

    def on_change(self, listener: Callable[[], None]) -> None:
        """``listener`` is called whenever the tokens have changed."""

    def renew(self, scope: Scope) -> None:
        """Replaces the generated token of a scope. Raises Conflict, ConfigError."""
