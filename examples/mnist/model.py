"""A small convolutional network for 28x28 pictures of digits."""

from __future__ import annotations

import torch
from torch import nn


class DigitNet(nn.Module):
    """Maps n x 1 x 28 x 28 to n x 10 logits; 50 000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(1, 16),
            *_block(16, 24),
            nn.MaxPool2d(2),
            *_block(24, 32),
            *_block(32, 48),
            nn.MaxPool2d(2),
            *_block(48, 64),
            nn.AdaptiveAvgPool2d(3),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 9, 10))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(pictures))
        return logits


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
