"""Where a model runs."""

from __future__ import annotations

import pytest
import torch

from modelserver_handlers.networks.device import choose_device


@pytest.mark.parametrize(
    ("gpu_id", "cuda", "mps", "place", "device"),
    [
        (None, True, True, "cpu", "cpu"),
        (1, True, False, "cuda", "cuda:1"),
        (0, False, True, "mps", "mps"),
        (0, False, False, "cpu", "cpu"),
    ],
)
def test_choice(
    gpu_id: int | None, cuda: bool, mps: bool, place: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assigned GPU is used if there is one; without an assignment the model stays on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    assert choose_device(gpu_id) == (place, torch.device(device))
