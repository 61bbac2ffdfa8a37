"""The tokens of a running server: given or generated, renewed, and removed at its end."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.engine.file_locks import replace_file
from modelserver.errors import ConfigError, Conflict
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Fingerprint, Verifier

if TYPE_CHECKING:
    from modelserver.surface.auth.operator_tokens import OperatorTokens

# ``key_file.json``, which contains the tokens that the server generated (reference 16.1).

NAME = "key_file.json"


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is valid until ``expires``, in seconds since 1970; None: for ever."""

    key: str = field(repr=False)
    expires: float | None = None


class KeyFile:
    """The file, readable by its owner only.

    Unlike TorchServe, where only ``--stop`` removes the file, the server also does when it ends regularly.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""

    def write(self, tokens: Mapping[Scope, Token]) -> None:
        """Writes the tokens, in one step. Raises ConfigError if the file cannot be written."""
        content = _render(tokens)
        try:
            replace_file(self.path, content, mode=0o600)
        except OSError as error:
            raise ConfigError(
                f"The token file cannot be written: {self.path}: {error.strerror}; "
                "start the server in a writable directory, or provide the tokens (token_file)"
            ) from error
        self._written = content

    def remove(self) -> None:
        """Removes the file unless its content has changed: it may be another server's by now."""
        with contextlib.suppress(OSError):
            if self._written and self.path.read_bytes() == self._written:
                self.path.unlink()


def _render(tokens: Mapping[Scope, Token]) -> bytes:
    document: dict[str, dict[str, str]] = {}
    for scope, token in tokens.items():
        document[scope.value] = {"key": token.key}
        if token.expires is not None:
            moment = datetime.fromtimestamp(token.expires, timezone.utc)
            document[scope.value]["expiration time"] = moment.isoformat(timespec="microseconds").replace(
                "+00:00", "Z"
            )
    return json.dumps(document, indent=2).encode() + b"\n"


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

    @property
    def fingerprints(self) -> list[Fingerprint]:
        made = [Fingerprint.of(scope, token.key, token.expires) for scope, token in self._made.items()]
        return made + [Fingerprint.of(scope, key) for scope, keys in self._provided.items() for key in keys]

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
        self.verifier.replace(self.fingerprints)
        for listener in self._listeners:
            listener()
