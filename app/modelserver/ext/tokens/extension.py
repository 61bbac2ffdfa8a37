"""The tokens of a server that requires some."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from modelserver.ext.tokens.key_file import KeyFile
from modelserver.ext.tokens.operator_tokens import take_from_environment
from modelserver.ext.tokens.rotation import Rotation
from modelserver.extension import Host
from modelserver.surface.auth.scopes import KEY_FILE


class Extension:
    """On where tokens are required. The first one: processes that others start inherit the environment."""

    def __init__(self) -> None:
        self._rotation: Rotation | None = None

    async def open(self, host: Host) -> None:
        provided = take_from_environment(os.environ)
        self._rotation = Rotation(host.settings, provided, KeyFile(Path.cwd() / KEY_FILE))
        host.services = replace(host.services, tokens=self._rotation.keeper)
        host.run(self._rotation.watch)

    async def close(self, grace: float) -> None:
        """Removes the file of generated tokens."""
        if self._rotation is not None:
            self._rotation.keeper.close()
