"""Random weights that behave like trained ones: activations in range, answers that depend on the picture."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PICTURES = 16
SIDE = 128  # pixels; the statistics hardly depend on it, the time does
SPREAD = 1.0  # standard deviation of the logits: enough to tell pictures apart, little enough to keep 1e-5


def calibration_batch(seed: int, pictures: int = PICTURES, side: int = SIDE) -> torch.Tensor:
    """``pictures`` x 3 x ``side`` x ``side``, normalised: shapes of all sizes, contrasts and colours."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(pictures, *shape, generator=generator)

    batch = torch.zeros(pictures, 3, side, side)
    for cells in (2, 4, 8, 16, 32, 64, 128):
        shapes = noise(1, cells, cells) + noise(3, cells, cells) / 2
        batch += nn.functional.interpolate(shapes, size=(side, side), mode="bilinear") / cells**0.5
    mean, deviation = batch.mean((1, 2, 3), keepdim=True), batch.std((1, 2, 3), keepdim=True)
    contrast = 0.5 + torch.rand(pictures, 1, 1, 1, generator=generator)
    return (batch - mean) / deviation * contrast + 0.7 * noise(3, 1, 1)


@torch.no_grad()
def calibrate(model: nn.Module, seed: int) -> None:
    """Set BatchNorm statistics and scale the last layer from one seeded batch; ends in eval mode."""
    # Vision transformers take pictures of one size only.
    batch = calibration_batch(seed, side=getattr(model, "image_size", SIDE))
    model.eval()
    with _collecting(module for module in model.modules() if isinstance(module, _BatchNorm)):
        model(batch)
    _spread_logits(model, model(batch))


@contextmanager
def _collecting(norms: Iterable[_BatchNorm]) -> Iterator[None]:
    """Within, the given layers take over the statistics of what passes through them."""
    momenta = {norm: norm.momentum for norm in norms}
    for norm in momenta:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    try:
        yield
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
            norm.eval()


def _spread_logits(model: nn.Module, logits: torch.Tensor) -> None:
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    for layer in last:
        if layer.out_features != logits.shape[-1] or layer.bias is None:
            continue
        centre = logits.mean(dim=0)
        scale = SPREAD / (logits - centre).std().clamp_min(1e-6)
        layer.weight.mul_(scale)
        layer.bias.copy_((layer.bias - centre) * scale)
