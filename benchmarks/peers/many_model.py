"""One of many models that compute a digit: a handler of an archive, and Ray Serve's model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

WEIGHTS = "weights.pt"
# Variables of Ray Serve's program: folders of kinds, and how many models stay loaded.
PORT, FITS, FOLDER = "MANY_PORT", "MANY_FITS", "MANY_FOLDER"


class Model:
    """Its answer says when it had loaded."""

    def initialize(self, context: Any) -> None:
        """Load from the folder of the archive."""
        self.load(Path(context.system_properties["model_dir"]))

    def load(self, folder: Path) -> None:
        """Load the weights."""
        torch.set_num_threads(1)
        self.weights = torch.load(folder / WEIGHTS, weights_only=True)
        self.network = digit_network()
        self.network.load_state_dict(self.weights["network"])
        self.picture = torch.zeros(1, 1, 28, 28)
        self.loaded_at = time.monotonic()

    def handle(self, data: list[Any], _context: Any) -> list[Any]:
        """An answer for each request."""
        return [self.answer() for _ in data]

    def answer(self) -> dict[str, float]:
        """When it had loaded, by the machine's clock."""
        self.network(self.picture)
        return {"loaded": self.loaded_at}


def digit_network() -> nn.Module:
    """A network of the size of the example's."""
    layers = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(576, 10))
    return nn.Sequential(*layers).eval().requires_grad_(False)


def write_weights(folder: Path, more: int) -> None:
    """Weights of a digit network, and ``more`` bytes that it does not need."""
    torch.manual_seed(0)
    weights = {"network": digit_network().state_dict(), "more": torch.ones(more, dtype=torch.uint8)}
    torch.save(weights, folder / WEIGHTS)
