"""Makes the keeper of a server, and lets given tokens be replaced while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from modelserver.auth.given import joined, read_token_file, take_from_environment
from modelserver.auth.keeper import TokenKeeper
from modelserver.auth.key_file import NAME, KeyFile
from modelserver.auth.policy import wants_tokens
from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from pathlib import Path

    from modelserver.auth.given import GivenTokens
    from modelserver.settings.settings import Settings

_log = logging.getLogger("modelserver.auth")

# Seconds between two looks at the file of given tokens.
LOOK_EVERY = 5.0


class Rotation:
    """The tokens of a server, and the file among their sources that may change.

    Args:
        settings: ``token_file`` and ``token_expiration_min``.
        given: those of the environment.
        key_file: for those that are made.

    Raises:
        ConfigError: a file cannot be read or written.
    """

    def __init__(self, settings: Settings, given: GivenTokens, key_file: KeyFile) -> None:
        self._path = settings.token_file
        self._from_environment = given
        self._now_given = self._read()
        minutes = settings.token_expiration_min
        self.keeper = TokenKeeper(self._now_given, minutes * 60.0 if minutes else None, key_file, time.time)

    async def watch(self, every: float = LOOK_EVERY) -> None:
        """Looks at ``token_file`` for ever; what is in it counts within ``every`` seconds."""
        if self._path is None:
            return
        while True:
            await asyncio.sleep(every)
            self.look(await asyncio.to_thread(self._try_to_read))

    def look(self, given: GivenTokens | None) -> None:
        """Makes these the given tokens if they are others than before."""
        if given is None or given == self._now_given:
            return
        try:
            self.keeper.replace_given(given)
        except ConfigError as error:
            _log.error("%s; the tokens stay as they were", error)
            return
        self._now_given = given
        _log.info("The given tokens have changed: those of %s count now", self._path)

    def _read(self) -> GivenTokens:
        in_file = {} if self._path is None else read_token_file(self._path)
        return joined(self._from_environment, in_file)

    def _try_to_read(self) -> GivenTokens | None:
        try:
            return self._read()
        except ConfigError as error:
            _log.error("%s; the tokens stay as they were", error)
            return None


@contextlib.contextmanager
def kept_tokens(
    settings: Settings, environ: MutableMapping[str, str], cwd: Path
) -> Iterator[Rotation | None]:
    """The tokens of a server until it ends, None if it asks for none.

    The variables are taken out of ``environ`` in any case: workers inherit it.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    wanted = wants_tokens(settings, environ)
    given = take_from_environment(environ)
    if not wanted:
        yield None
        return
    rotation = Rotation(settings, given, KeyFile(cwd / NAME))
    try:
        yield rotation
    finally:
        rotation.keeper.close()
