"""The channel of a worker whose server is a test."""

from collections.abc import Sequence
from typing import Any

from modelserver.engine.wire.messages import ToServer


class Channel:
    """Keeps what is sent, and the batches that were begun; not those of ``taken_back``."""

    def __init__(self) -> None:
        self.sent: list[tuple[ToServer, list[bytes]]] = []
        self.started: list[int] = []
        self.taken_back: set[int] = set()
        self.is_closed = False

    def begin(self, sequence: int) -> bool:
        if sequence in self.taken_back:
            return False
        self.started.append(sequence)
        return True

    def send(self, message: ToServer, bodies: Sequence[bytes] = (), loop: Any = None) -> None:
        self.sent.append((message, list(bodies)))

    def close(self) -> None:
        self.is_closed = True
