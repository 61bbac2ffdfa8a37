"""``key_file.json``: where the tokens are that the server made (reference 16.1)."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from modelserver.auth.scopes import Scope

NAME = "key_file.json"


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is good until ``expires``, in seconds since 1970; None: for ever."""

    key: str = field(repr=False)
    expires: float | None = None


class KeyFile:
    """The file, for its owner only.

    Different from TorchServe: the server removes its file when it ends in order, not only ``--stop`` does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""

    def write(self, tokens: Mapping[Scope, Token]) -> None:
        """Puts the tokens there, in one step.

        Raises:
            ConfigError: it cannot be written.
        """
        content = _render(tokens)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                temporary.replace(self.path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ConfigError(
                f"The file of tokens cannot be written: {self.path}: {error.strerror}; "
                "start where it can be, or give the tokens (token_file)"
            ) from error
        self._written = content

    def remove(self) -> None:
        """Removes the file if it still has what was written last: another server may have its own there."""
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
