"""Tokens of gRPC calls: the metadata `authorization: Bearer <token>` (reference 16.2)."""

from __future__ import annotations

from modelserver.ext.grpc.call import GrpcCall
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier

_HEADER = "authorization"

# Probes need no token over REST either.
_OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})
_OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
_MANAGING = ("Repository", "LogSettings", "TraceSetting")


class Unauthorized(Exception):
    """A call does not have the token that it needs; the message is for its client."""


class Gate:
    """Passes calls that have the token they need; the repository and settings need the management token.

    Args:
        verifier: checks the tokens; None if none are required.
        scope: what calls of this server need.
        ping_token: whether ``Ping`` needs a token.
    """

    def __init__(self, verifier: Verifier | None, scope: Scope, *, ping_token: bool) -> None:
        self._verifier = verifier
        self._scope = scope
        self._open = _OPEN_METHODS if ping_token else _OPEN_METHODS | {"Ping"}

    def check(self, path: str, call: GrpcCall) -> None:
        """Raises Unauthorized. ``path`` is `service/method`."""
        if self._verifier is None:
            return
        service, _, method = path.rpartition("/")
        if service in _OPEN_SERVICES or method in self._open:
            return
        scope = Scope.MANAGEMENT if method.startswith(_MANAGING) else self._scope
        token = next((value for name, value in call.head.metadata if name == _HEADER), None)
        header = token.encode("utf-8", "replace") if isinstance(token, str) else token
        if (refusal := self._verifier.refusal(scope, header)) is not None:
            raise Unauthorized(refusal.message)
