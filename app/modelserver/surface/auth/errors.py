"""The error for a request without the right token."""

from __future__ import annotations

from modelserver.errors import BadRequest
from modelserver.surface.auth.scopes import Scope

_REASON = "failed. Token either incorrect, expired, or not provided correctly"


class InvalidKey(BadRequest):
    """The token is missing, malformed, wrong or expired: 400 with TorchServe's words (reference 16.2)."""

    type = "InvalidKeyException"

    def __init__(self, scope: Scope) -> None:
        # TorchServe says "Authentication" at /token and "Authorization" everywhere else.
        what = "Authentication" if scope is Scope.API else "Authorization"
        super().__init__(f"Token {what} {_REASON}")
