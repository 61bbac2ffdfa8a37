"""Reloads a certificate when its files change; TorchServe needs a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from modelserver.errors import ConfigError
from modelserver.ext.tls.certificate import load_certificate
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

# Seconds between checks.
LOOK_EVERY = 2.0

_log = logging.getLogger("modelserver.tls")

_Mark = tuple[tuple[int, int, int] | None, ...]


class Renewal:
    """Watches the files of key, certificate or keystore, and of client authorities.

    While they are invalid or do not match, as when only one has been replaced, the current ``certificate`` is
    kept, with one line in the log. ``taker`` gets each new certificate, on the event loop.
    """

    def __init__(
        self, settings: Settings, certificate: Certificate, taker: Callable[[Certificate], None]
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._taker = taker
        paths = (
            settings.private_key_file,
            settings.certificate_file,
            settings.keystore,
            settings.tls_client_ca_file,
        )
        self._files = [path for path in paths if path is not None]
        # Empty, as files may have changed since they were read.
        self._mark: _Mark = ()

    async def watch(self, every: float = LOOK_EVERY) -> None:
        """Checks the files every ``every`` seconds, forever."""
        while self._files:
            await asyncio.sleep(every)
            self.take(await asyncio.to_thread(self.look))

    def look(self) -> Certificate | None:
        """The certificate in the files, if they have changed and are valid."""
        mark = tuple(_mark_of(path) for path in self._files)
        if mark == self._mark:
            return None
        # Set before reading, so that later changes are noticed next time.
        self._mark = mark
        try:
            return load_certificate(self._settings)
        except ConfigError as error:
            _log.error("%s; keeping the current certificate", error)
            return None

    def take(self, certificate: Certificate | None) -> None:
        """Uses the certificate for new connections, if it has changed."""
        if certificate is None or certificate == self._certificate:
            return
        self._certificate = certificate
        self._taker(certificate)
        _log.info("The certificate has changed; new connections use it")


def _mark_of(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file's content; for a link the target's, as mounted secrets are replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
