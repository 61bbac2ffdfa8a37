"""A network for texts: the mean of the word embeddings, and a linear layer."""

from __future__ import annotations

import torch
from torch import nn

# Maximum number of words and word pairs in the vocabulary.
ROOM = 1024
CLASSES = 2


class MoodNet(nn.Module):
    """Maps the concatenated words of n texts, and the offset of each text, to n x 2 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(ROOM, 16, mode="mean")
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.embedding(ids, offsets))
        return logits
