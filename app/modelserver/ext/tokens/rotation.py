"""The tokens of a server from all sources; those in a file can be replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
import time

from modelserver.errors import ConfigError
from modelserver.ext.tokens.keeper import TokenKeeper
from modelserver.ext.tokens.key_file import KeyFile
from modelserver.ext.tokens.operator_tokens import OperatorTokens, joined, read_token_file
from modelserver.models.settings.settings import Settings

_log = logging.getLogger("modelserver.auth")

# Seconds between two checks of the file of given tokens.
LOOK_EVERY = 5.0


class Rotation:
    """The tokens of a server, and the file of given tokens, which may change.

    Args:
        settings: for ``token_file`` and ``token_expiration_min``.
        provided: the tokens from the environment.
        key_file: for generated tokens.

    Raises:
        ConfigError: a file cannot be read or written.
    """

    def __init__(self, settings: Settings, provided: OperatorTokens, key_file: KeyFile) -> None:
        self._path = settings.token_file
        self._from_environment = provided
        self._provided = self._read()
        minutes = settings.token_expiration_min
        self.keeper = TokenKeeper(self._provided, minutes * 60.0 if minutes else None, key_file, time.time)

    async def watch(self, every: float = LOOK_EVERY) -> None:
        """Checks ``token_file`` for ever; changes take effect within ``every`` seconds."""
        if self._path is None:
            return
        while True:
            await self._look()
            await asyncio.sleep(every)

    async def _look(self) -> None:
        try:
            provided = await asyncio.to_thread(self._read)
            if provided == self._provided:
                return
            self.keeper.replace_provided(provided)
        except ConfigError as error:
            _log.error("%s; the tokens stay as they were", error)
            return
        self._provided = provided
        _log.info("The given tokens have changed: those in %s are valid now", self._path)

    def _read(self) -> OperatorTokens:
        in_file = {} if self._path is None else read_token_file(self._path)
        return joined(self._from_environment, in_file)
