"""A network for texts: the mean of the embeddings of their words, and a linear layer."""

from __future__ import annotations

import torch
from torch import nn

# Numbers of words and pairs of words that the vocabulary may have.
ROOM = 1024
CLASSES = 2


class MoodNet(nn.Module):
    """All words of n texts, one after the other, and where each text begins, to n x 2 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(ROOM, 16, mode="mean")
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.embedding(ids, offsets))
        return logits
