"""What models need, learned when they were loaded: memory, and seconds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from modelserver.ext.parking.stored import StoredValues

FILE = "needs.json"
# Models whose needs are known, the most recent ones; each is about 100 bytes.
MOST = 20_000


class Need(msgspec.Struct, frozen=True):
    """Bytes of a worker's own memory, seconds until it has loaded, and bytes of each GPU, if known."""

    memory: int
    seconds: float
    device: int | None = None


class Needs(StoredValues[Need]):
    """The needs by key."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("What models need", FILE, Need, MOST, folder)
