"""Convolutions joined with what follows them."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from modelserver_handlers.networks.optimize import FastForward, optimize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SHAPE = (3, 32, 32)


class Block(nn.Module):
    """A residual block, with any activation and with or without a norm."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.activation = activation or nn.ReLU()
        self.last = nn.Linear(16, 7)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x 3 x any x any to rows x 7."""
        found = self.activation(self.norm(self.first(rows)))
        found = self.activation(self.second(found) + found)
        answers: torch.Tensor = self.last(found.mean((2, 3)))
        return answers


class Deciding(Block):
    """Its way depends on its input's values: it cannot be traced."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As Block, or negative."""
        return super().forward(rows) if rows.sum() > 0 else -super().forward(rows)


class Chancy(Block):
    """Adds a number that is another each time."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As Block, and more."""
        return super().forward(rows) + torch.rand(())


def settled(model: nn.Module) -> nn.Module:
    """With seeded weights and norms that have seen something, in evaluation mode."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(torch.randn(16, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(16, generator=generator))
    return model.eval()


def rows(count: int = 5, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Seeded inputs, others than the probe's."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(9))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def test_layers_are_joined() -> None:
    """Norm, sum and activations of a block are parts of its two convolutions."""
    fast = settled(Block())
    optimize(fast, SHAPE)
    assert isinstance(fast.forward, FastForward)

    left = Counter(type(module).__name__ for module in fast.forward._graph.children())

    # The sum stays apart where a convolution has groups, and with it the activation behind it.
    assert left == {"FusedConvolution": 2, "Linear": 1, "ReLU": 1}


def test_sums_are_joined(resnet18: nn.Module) -> None:
    """Nothing is left of a ResNet but convolutions, pooling and the last layer."""
    fast = copy.deepcopy(resnet18)
    optimize(fast, (3, 64, 64))
    assert isinstance(fast.forward, FastForward)
    code = fast.forward._graph.code

    assert "add" not in code
    assert "relu" not in code


def refused(model: Any, caplog: pytest.LogCaptureFixture, shape: tuple[int, ...] = SHAPE) -> str:
    """The reason for which a network is left alone; it is not touched."""
    caplog.set_level("INFO")
    before = getattr(model, "forward", None)
    assert not optimize(model, shape)
    assert getattr(model, "forward", None) == before
    return caplog.messages[-1]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Deciding(), "no convolutions"),
        (Chancy(), "would differ"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect")), "no convolutions"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)), "no convolutions"),
        (nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3))), "no convolutions"),
        (lambda batch: batch, "no eager network"),
    ],
)
def test_left_alone(model: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be traced, compared or joined stays as it is, and the log says why."""
    if isinstance(model, nn.Module):
        model.eval()

    assert reason in refused(model, caplog)
