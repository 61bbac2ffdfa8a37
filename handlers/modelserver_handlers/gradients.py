"""Integrated gradients: how much each input value spoke for a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = 15  # as TorchServe


def integrated_gradients(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, target: int | Sequence[int]
) -> torch.Tensor:
    """Attributions of ``inputs`` (n x ...) to class ``target`` (one, or one per row), in the inputs' shape.

    The path starts at zero and is integrated by Gauss-Legendre quadrature. Raises IndexError for a class that
    the model does not have, and RuntimeError for a model without gradients (one that AOTInductor compiled).
    """
    nodes, widths = np.polynomial.legendre.leggauss(STEPS)
    rows = torch.arange(len(inputs), device=inputs.device)
    targets = torch.as_tensor(target, device=inputs.device).expand(len(inputs))
    total = torch.zeros_like(inputs)
    for node, width in zip(nodes, widths, strict=True):
        point = (inputs.detach() * float((node + 1) / 2)).requires_grad_()
        with torch.enable_grad():
            chosen = model(point)[rows, targets].sum()
        total += torch.autograd.grad(chosen, point)[0] * float(width / 2)
    return total * inputs
