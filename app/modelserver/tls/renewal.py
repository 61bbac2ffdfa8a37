"""A certificate whose files change is taken up while the server runs; TorchServe needs a restart."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.tls.certificate import load_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelserver.settings.settings import Settings
    from modelserver.tls.context import Certificate

# Seconds between two looks at the files.
LOOK_EVERY = 2.0

_log = logging.getLogger("modelserver.tls")

_Mark = tuple[tuple[int, int, int] | None, ...]


class Renewal:
    """Looks at the files of key, certificate or keystore, and of clients' authorities.

    What they hold counts only if it is usable as a whole: files that do not belong together, as while one of
    two has been replaced, leave the certificate as it was, with one line in the log.

    Args:
        settings: which name the files.
        certificate: what is shown now.
        taker: gets each new certificate, on the event loop.
    """

    def __init__(
        self, settings: Settings, certificate: Certificate, taker: Callable[[Certificate], None]
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._taker = taker
        named = (
            *(settings.private_key_file, settings.certificate_file),
            *(settings.keystore, settings.tls_client_ca_file),
        )
        self._files = [path for path in named if path is not None]
        # None yet: they may have changed since they were read.
        self._mark: _Mark = ()

    async def watch(self, every: float = LOOK_EVERY) -> None:
        """Looks for ever; what is in the files counts within ``every`` seconds."""
        while self._files:
            await asyncio.sleep(every)
            self.take(await asyncio.to_thread(self.look))

    def look(self) -> Certificate | None:
        """What is in the files, if they have changed since the last look and can be used."""
        mark = self._marks()
        if mark == self._mark:
            return None
        # Taken before the files are read: what changes meanwhile is seen the next time.
        self._mark = mark
        try:
            return load_certificate(self._settings)
        except ConfigError as error:
            _log.error("%s; the certificate stays as it was", error)
            return None

    def take(self, certificate: Certificate | None) -> None:
        """Makes it that of the connections from now on, if it is another one."""
        if certificate is None or certificate == self._certificate:
            return
        self._certificate = certificate
        self._taker(certificate)
        _log.info("The certificate has changed: connections from now on are shown the new one")

    def _marks(self) -> _Mark:
        return tuple(_mark_of(path) for path in self._files)


def _mark_of(path: Path) -> tuple[int, int, int] | None:
    """What differs when a file has another content; of a link its target's, as mounted secrets change."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
