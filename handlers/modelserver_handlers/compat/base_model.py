"""A minimal network, for tests of handlers without a server (reference 13)."""

from __future__ import annotations

from pathlib import Path

import torch


class ArgmaxModel(torch.nn.Module):
    """Has no weights."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The index of the largest number of each row."""
        return torch.argmax(inputs[0], 1)


def save_pt_file(filepath: str | Path = "base_model.pt") -> None:
    """Write its state dict."""
    torch.save(ArgmaxModel().state_dict(), filepath)
