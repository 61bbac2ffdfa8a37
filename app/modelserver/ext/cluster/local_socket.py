"""Paths of sockets that are too long for the system, which takes 107 bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 107


@contextlib.contextmanager
def address_of(path: str) -> Iterator[str]:
    """The address to bind or connect to for a path of any length. Raises OSError."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{Path(path).name}"
    finally:
        os.close(folder)
