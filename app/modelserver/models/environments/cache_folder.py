"""The server's cache folder, where workers keep prepared weights too.

It is ``$MODELSERVER_CACHE``, or ``modelserver`` in the user's cache folder; ``off`` means none. It must
belong to this user and be writable by nobody else, as code in it is run.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MODELSERVER_CACHE"

_log = logging.getLogger(__name__)


def cache_folder(name: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder of that name in the cache, created if needed; None if there is no safe place for it."""
    root = _root(os.environ if environment is None else environment)
    if root is None:
        return None
    folder = root / name
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for path in (root, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(path):
                _log.warning("Nothing is cached: others than this user can write to %s", path)
                return None
    except OSError as error:
        _log.info("Nothing is cached: %s cannot be made (%s)", folder, error.strerror)
        return None
    return folder


def _is_private(path: Path) -> bool:
    """Whether it is a folder that only this user can write to. Raises OSError."""
    status = path.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & others


def _root(environment: Mapping[str, str]) -> Path | None:
    """The folder that has all others; None if nothing is to be cached."""
    value = environment.get(VARIABLE)
    if value is not None:
        return None if value in ("", "off") else Path(value).absolute()
    caches = environment.get("XDG_CACHE_HOME")
    if caches and os.path.isabs(caches):
        return Path(caches) / "modelserver"
    home = os.path.expanduser("~")
    return Path(home, ".cache", "modelserver") if os.path.isdir(home) else None
