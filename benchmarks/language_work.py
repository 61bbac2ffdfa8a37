"""The pretended engine and the embedding model that all servers of ``language`` have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

# Pieces of an answer, and how many texts share a batch.
PIECES = int(os.environ.get("LANGUAGE_PIECES", "200"))
BATCH = 32
_LENGTH = 32


def pieces() -> Iterator[str]:
    """An answer of an engine of unlimited speed."""
    for _ in range(PIECES):
        yield " token"


class Embedder:
    """A network of MiniLM's size (6 layers of 384) with random weights, over bytes as tokens."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - only where it is computed

        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True, activation="gelu")
        self._torch = torch
        self._table = torch.nn.Embedding(256, 384)
        self._layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()

    def vectors(self, texts: list[str]) -> Any:
        """One vector for each text."""
        torch = self._torch
        padded = [text.encode()[:_LENGTH].ljust(_LENGTH) for text in texts]
        ids = torch.tensor([list(row) for row in padded])
        with torch.inference_mode():
            return self._layers(self._table(ids)).mean(dim=1)
