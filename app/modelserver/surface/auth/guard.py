"""Checks the token of each request of a listener before anything else reads the request."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from urllib.parse import unquote

import httptools

from modelserver.surface.auth.scopes import Scope, needed_scope, strictest_scope
from modelserver.surface.auth.verifier import InvalidKey, Verifier
from modelserver.surface.http.exchange import HotRoutes

# How many URLs have their scope cached, and the bytes of the longest of them.
_CACHED = 1024
_LONGEST_CACHED = 512
_HEADER = b"authorization"


class Guard:
    """Passes requests that have the token they need; as in TorchServe, before routing.

    Args:
        verifier: checks the tokens.
        roles: of the listener.
        hot: routes for inference, some of them at paths that models have by their option ``route``.
        ping_token: whether ``/ping`` needs a token.
    """

    def __init__(
        self, verifier: Verifier, roles: AbstractSet[str], hot: HotRoutes | None = None, *, ping_token: bool
    ) -> None:
        self._verifier = verifier
        self._hot = hot
        self._roles = frozenset(roles)
        self._ping_token = ping_token
        self._cached_scope = lru_cache(_CACHED)(self._scope)

    def check(self, method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> InvalidKey | None:
        """The error to answer with, None if the request may pass. ``url`` is from the first line."""
        scope = (self._cached_scope if len(url) <= _LONGEST_CACHED else self._scope)(method, url)
        if scope is None:
            return None
        if scope is Scope.MANAGEMENT and self._hot is not None and self._hot.find(url) is not None:
            scope = Scope.INFERENCE
        for name, value in headers:
            if len(name) == len(_HEADER) and name.lower() == _HEADER:
                return self._verifier.refusal(scope, value)
        return self._verifier.refusal(scope, None)

    def _scope(self, method: bytes, url: bytes) -> Scope | None:
        try:
            path = httptools.parse_url(url).path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return strictest_scope(self._roles)
        return needed_scope(self._roles, method.decode(), unquote(path), ping_token=self._ping_token)
