"""Weights of fused networks, kept in a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.handlers.processor import HAS_BF16, needs_bf16
from torch import nn

from modelserver_handlers.networks import prepared
from modelserver_handlers.networks.optimize import deviation, optimize

if TYPE_CHECKING:
    from collections.abc import Callable


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


def outputs(model: nn.Module, inputs: torch.Tensor) -> Any:
    """As a handler gets them."""
    with torch.inference_mode():
        return model(inputs)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def test_weights_come_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second worker maps what the first one made, and computes the same."""
    first, second = settled(Block()), settled(Block())
    second.load_state_dict(first.state_dict())
    optimize(first, SHAPE)
    (file,) = folder.glob("*.pt")
    monkeypatch.setattr(prepared, "_make", None)

    assert optimize(second, SHAPE)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert torch.equal(outputs(first, rows()), outputs(second, rows()))


def test_other_weights_are_not_taken_from_the_cache(folder: Path) -> None:
    """Another number, outline or precision, or lone rows, mean another file; the batch size does not."""
    block = settled(Block())
    for precision, size in (("fp32", 8), ("bf16", 8), ("fp32", 1), ("fp32", 5)):
        optimize(copy.deepcopy(block), SHAPE, precision, size)
    changed = copy.deepcopy(block)
    changed.last.bias.data[0] += 1e-6  # type: ignore[union-attr, index]
    optimize(changed, SHAPE)
    other = settled(Block(nn.SiLU()))
    other.load_state_dict(block.state_dict())
    optimize(other, SHAPE)

    assert len(list(folder.glob("*.pt"))) == (5 if HAS_BF16 else 4)


def test_a_broken_file_is_made_anew(folder: Path) -> None:
    """What cannot be read from the cache is replaced."""
    block = settled(Block())
    optimize(copy.deepcopy(block), SHAPE)
    (file,) = folder.glob("*.pt")
    size = file.stat().st_size
    file.write_bytes(b"nothing")
    fast = copy.deepcopy(block)

    assert optimize(fast, SHAPE)
    assert file.stat().st_size == size
    assert deviation(outputs(fast, rows()), outputs(block, rows())) < 1e-4


@pytest.mark.parametrize("without", ["cache", "sharing"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bf16)])
def test_without_a_cache(without: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the worker's own do as well."""
    if without == "cache":
        monkeypatch.setenv("MODELSERVER_CACHE", "off")
    else:
        monkeypatch.setattr(prepared.packed, "can_share", lambda: False)
    plain = settled(Block())
    fast = copy.deepcopy(plain)

    assert optimize(fast, SHAPE, precision)
    assert deviation(outputs(fast, rows()), outputs(plain, rows())) < (1e-4 if precision == "fp32" else 0.05)
