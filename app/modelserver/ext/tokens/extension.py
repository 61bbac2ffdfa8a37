"""The tokens of a server that requires some."""

from __future__ import annotations

import os
from dataclasses import replace

from modelserver.ext.tokens.key_file import KeyFile
from modelserver.ext.tokens.operator_tokens import take_from_environment
from modelserver.ext.tokens.rotation import Rotation
from modelserver.extension import Host


class Extension:
    """On where tokens are required. The first one: processes that others start inherit the environment."""

    def __init__(self) -> None:
        self._rotation: Rotation | None = None

    async def open(self, host: Host) -> None:
        assert host.key_file is not None  # noqa: S101 - it would be off
        provided = take_from_environment(os.environ)
        self._rotation = Rotation(host.settings, provided, KeyFile(host.key_file))
        host.services = replace(host.services, tokens=self._rotation.keeper)
        host.run(self._rotation.watch)

    async def close(self, grace: float) -> None:
        """Removes the file of generated tokens."""
        if self._rotation is not None:
            self._rotation.keeper.close()
