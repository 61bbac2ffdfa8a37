"""Integrated gradients: how much each input value spoke for a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = 15  # as TorchServe


def chosen_outputs(outputs: torch.Tensor, target: int | Sequence[int]) -> torch.Tensor:
    """Of n x classes, each row's output for its class. Raises IndexError for a class that there is not."""
    targets = torch.as_tensor(target).expand(len(outputs))
    # Looked at here: on a GPU a wrong index would end the worker.
    if len(targets) and not -outputs.shape[1] <= int(targets.min()) <= int(targets.max()) < outputs.shape[1]:
        raise IndexError(f"the classes are 0 to {outputs.shape[1] - 1}")
    rows = torch.arange(len(outputs), device=outputs.device)
    return outputs[rows, targets.to(outputs.device)]


def integrated_gradients(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, target: int | Sequence[int]
) -> torch.Tensor:
    """Attributions of ``inputs`` (n x ...) to class ``target`` (one, or one per row), in the inputs' shape.

    The path starts at zero and is integrated by Gauss-Legendre quadrature. Raises IndexError for a class that
    the model does not have, and RuntimeError for a model without gradients (one that AOTInductor compiled).
    """
    nodes, widths = np.polynomial.legendre.leggauss(STEPS)
    total = torch.zeros_like(inputs)
    for node, width in zip(nodes, widths, strict=True):
        point = (inputs.detach() * float((node + 1) / 2)).requires_grad_()
        with torch.enable_grad():
            chosen = chosen_outputs(model(point), target).sum()
        total += torch.autograd.grad(chosen, point)[0] * float(width / 2)
    return total * inputs
