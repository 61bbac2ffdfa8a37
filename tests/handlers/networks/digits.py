"""Small networks that read scikit-learn's digits, trained in a second: they show what 8 bits cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

SHAPE = (1, 8, 8)
LEARNT = 1200
CALIBRATION = 100


class Digits(NamedTuple):
    """Pictures (n x 1 x 8 x 8, from 0 to 1) and what they show."""

    pictures: torch.Tensor
    labels: torch.Tensor

    def part(self, first: int, last: int | None = None) -> Digits:
        return Digits(self.pictures[first:last], self.labels[first:last])


@functools.cache
def all_digits() -> Digits:
    """1797, in seeded order."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor(pictures, dtype=torch.float32).view(-1, *SHAPE) / 16
    return Digits(rows[order], torch.tensor(labels)[order])


def held_out() -> Digits:
    return all_digits().part(LEARNT)


def calibration_set() -> torch.Tensor:
    return all_digits().pictures[:CALIBRATION]


class Residual(nn.Module):
    """Norms, a residual sum, a depthwise convolution, a max pool, any activation."""

    def __init__(self, activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), activation()
        )
        self.pool = nn.MaxPool2d(2)
        self.inner = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), activation())
        self.outer = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.activation = activation()
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), activation())
        self.wide = nn.Conv2d(16, 32, 1)
        self.classes = nn.Linear(32, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = self.pool(self.stem(rows))
        values = self.activation(self.outer(self.inner(values)) + values)
        values = torch.relu(self.wide(self.depthwise(values)))
        return self.classes(values.mean((2, 3)))


def trained(model: nn.Module) -> nn.Module:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for pictures this small, several cost more than they do
    digits = all_digits().part(0, LEARNT)
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(1)
    model.train()
    for epoch in range(8):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - epoch / 8)
        for chosen in torch.randperm(LEARNT, generator=generator).split(60):
            optimizer.zero_grad()
            answers = model(digits.pictures[chosen])
            nn.functional.cross_entropy(answers, digits.labels[chosen]).backward()
            optimizer.step()
    torch.set_num_threads(threads)
    return model.eval()


def accuracy(model: nn.Module, digits: Digits) -> float:
    with torch.inference_mode():
        return float((model(digits.pictures).argmax(1) == digits.labels).float().mean())
