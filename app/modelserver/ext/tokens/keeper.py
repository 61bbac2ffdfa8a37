"""The tokens of a running server: given or generated, renewed, and removed at its end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from modelserver.errors import Conflict
from modelserver.ext.tokens.key_file import KeyFile, Token
from modelserver.ext.tokens.operator_tokens import OperatorTokens
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier

# TorchServe's keys have 6.
_KEY_BYTES = 24


class TokenKeeper:
    """Generates a token for each scope without given tokens, and stores the generated ones in a file.

    Args:
        provided: the operator's tokens; they never expire and are not written to the file.
        lifetime: seconds for which a generated inference or management token is valid; None: for ever.
        file: for the generated tokens.
        clock: seconds since 1970.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(
        self, provided: OperatorTokens, lifetime: float | None, file: KeyFile, clock: Callable[[], float]
    ) -> None:
        self.verifier = Verifier(clock)
        self._lifetime = lifetime
        self._clock = clock
        self._file = file
        self._provided = provided
        self._made: dict[Scope, Token] = {}
        self._listeners: list[Callable[[], None]] = []
        self.replace_provided(provided)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def renew(self, scope: Scope) -> None:
        """Replaces the generated token of a scope; the old one becomes invalid at once.

        Raises:
            Conflict: the tokens of this scope are given.
            ConfigError: the file cannot be written; the old token stays valid.
        """
        if scope in self._provided:
            raise Conflict(f"The {scope.value} tokens are given to the server: replace them at their source.")
        self._publish({**self._made, scope: self._make(scope)})
        logging.getLogger("modelserver.auth").info("The %s token was renewed", scope.value)

    def replace_provided(self, provided: OperatorTokens) -> None:
        """Replaces all given tokens.

        Raises:
            ConfigError: a token had to be generated and the file cannot be written; nothing has changed.
        """
        made = {s: self._made.get(s) or self._make(s) for s in Scope if s not in provided}
        before, self._provided = self._provided, provided
        try:
            self._publish(made)
        except BaseException:
            self._provided = before
            raise

    def close(self) -> None:
        self._file.remove()

    def _make(self, scope: Scope) -> Token:
        lasting = self._lifetime is None or scope is Scope.API
        expires = None if lasting else self._clock() + (self._lifetime or 0.0)
        return Token(secrets.token_urlsafe(_KEY_BYTES), expires)

    def _publish(self, made: dict[Scope, Token]) -> None:
        if made != self._made:
            if made:
                self._file.write(made)
            else:
                self._file.remove()
            self._made = made
        own = [(scope, token.key, token.expires) for scope, token in made.items()]
        provided = [(scope, key, None) for scope, keys in self._provided.items() for key in keys]
        self.verifier.replace([*own, *provided])
        for listener in self._listeners:
            listener()
