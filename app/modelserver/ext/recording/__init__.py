"""Recorded traffic: what the server sends to the one client that records, and the file that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelserver.ext.recording.file import RecordedRequest


def requests_of(path: Path) -> Iterator[RecordedRequest]:
    """The requests of a recording, in the order in which they arrived; see :func:`file.requests_of`."""
    from modelserver.ext.recording.file import requests_of as read  # noqa: PLC0415

    return read(path)
