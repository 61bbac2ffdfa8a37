"""Recorded traffic: what the server copies while somebody records, and the file that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelserver.ext.recording.file import Asked


def requests_of(path: Path) -> Iterator[Asked]:
    """The requests of a recording, in the order in which they arrived; see :func:`file.requests_of`."""
    from modelserver.ext.recording.file import requests_of as read  # noqa: PLC0415

    return read(path)
