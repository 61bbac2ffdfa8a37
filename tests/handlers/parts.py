"""The parts of an answer, as a handler sends them."""

from typing import Any


class Stream:
    """Keeps the parts of one answer."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def send(self, parts: Any) -> None:
        self.parts.append(parts[0])

    @staticmethod
    def send_together(parts: Any) -> None:
        for stream, part in parts:
            stream.parts.append(part)

    def is_cancelled(self, idx: int) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to do."""
