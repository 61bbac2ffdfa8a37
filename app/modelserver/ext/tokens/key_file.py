"""``key_file.json``, which contains the tokens that the server generated (reference 16.1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.engine.file_locks import replace_file
from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from modelserver.surface.auth.scopes import Scope


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
