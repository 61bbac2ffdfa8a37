"""A text classifier whose answers can be computed by hand."""

import torch


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(32, 2)

    def forward(self, text, offsets):
        return self.embedding(text, offsets)
