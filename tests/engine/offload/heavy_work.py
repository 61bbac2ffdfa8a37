"""Functions that helpers run in tests."""

from __future__ import annotations

import os

from modelserver.errors import BadRequest


def double(data: bytes, times: int | None) -> list[bytes]:
    """Some bytes again and again."""
    return [data] * (times or 2)


def refuse(text: str) -> bytes:
    """What a client did wrong."""
    raise BadRequest(text)


def fail(text: str) -> bytes:
    """What nobody foresaw."""
    raise ValueError(text)


def spin() -> bytes:
    """Never comes to an end."""
    while True:
        pass


def fill(size: int) -> int:
    """Takes memory."""
    return len(bytearray(size))


def whoami() -> int:
    """The helper's process."""
    return os.getpid()


def leave() -> int:
    """Ends the helper."""
    os._exit(0)
