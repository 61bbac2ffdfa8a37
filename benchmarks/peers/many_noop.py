"""One of many models that computes nothing and needs no torch, as :mod:`benchmarks.peers.many_model`."""

from __future__ import annotations

import time
from typing import Any


class Model:
    """Its answer says when it had loaded."""

    def initialize(self, _context: Any) -> None:
        """There is nothing to load."""
        self.load()

    def load(self, _folder: Any = None) -> None:
        """Note the time, by the machine's clock."""
        self.loaded_at = time.monotonic()

    def handle(self, data: list[Any], _context: Any) -> list[Any]:
        """An answer for each request."""
        return [self.answer() for _ in data]

    def answer(self) -> dict[str, float]:
        """When it had loaded."""
        return {"loaded": self.loaded_at}
