"""Explanations of a network's answers: those of the built-in handlers, and access to Captum.

Integrated gradients are computed here, with Captum's results but without it. Captum is only needed by
handlers that use it: as ``self.ig`` and ``self.lig``, or directly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from modelserver_handlers.errors import PredictionException

EXTRA = "modelserver[explain]"


def captum_attributions() -> ModuleType:
    """The module ``captum.attr``. Raises PredictionException (501) that says how to install it."""
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise PredictionException(f"This needs Captum ({error}): pip install '{EXTRA}'", 501) from error


def find_embedding(model: Any) -> nn.Embedding | nn.EmbeddingBag | None:
    """The layer ``embedding`` of an eager network, else its first one of that kind; None without one."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return None
    kinds = (nn.Embedding, nn.EmbeddingBag)
    named = getattr(model, "embedding", None)
    if isinstance(named, kinds):
        return named
    return next((module for module in model.modules() if isinstance(module, kinds)), None)


def bag_attributions(
    forward: Callable[[], torch.Tensor],
    bag: nn.EmbeddingBag,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    target: int | Sequence[int],
) -> torch.Tensor:
    """How much each of ``ids`` contributed to class ``target`` (one, or one per text): integrated gradients.

    ``forward`` runs the network on these ids and offsets. The path starts at a text without words, and the
    attributions of a text add up to what its words change in the class's output. Raises IndexError for a
    class that the network does not have, PredictionException (501) for a bag that is neither sum nor mean.
    """
    if bag.mode not in ("mean", "sum"):
        raise PredictionException(f"texts in a bag of mode {bag.mode!r} cannot be explained", 501)
    counts = torch.diff(offsets, append=torch.tensor([len(ids)], device=offsets.device))
    texts = torch.repeat_interleave(torch.arange(len(offsets), device=ids.device), counts)
    gradients = _mean_gradients(forward, bag, target)
    weights = bag.weight.detach()[ids]
    if bag.mode == "mean":
        weights = weights / counts[texts].unsqueeze(1)
    return (weights * gradients[texts]).sum(dim=1)


def _mean_gradients(
    forward: Callable[[], torch.Tensor], layer: nn.Module, target: int | Sequence[int]
) -> torch.Tensor:
    """The gradients of the chosen outputs by the layer's output, averaged along the path from zero to it."""

    def run(share: float) -> tuple[torch.Tensor, torch.Tensor]:
        seen: list[torch.Tensor] = []

        def replace(_layer: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            seen.append((output.detach() * share).requires_grad_())
            return seen[-1]

        hook = layer.register_forward_hook(replace)
        try:
            return forward(), seen[0]
        finally:
            hook.remove()

    return _integrated(run, target)


def _integrated(
    run: Callable[[float], tuple[torch.Tensor, torch.Tensor]], target: int | Sequence[int]
) -> torch.Tensor:
    """The mean gradient of the chosen outputs along a path, by Gauss-Legendre quadrature.

    ``run`` returns the outputs at a share of the path, and the tensor to differentiate by.
    """
    total: Any = 0.0
    for node, width in zip(*np.polynomial.legendre.leggauss(STEPS), strict=True):
        with torch.enable_grad():
            outputs, point = run(float((node + 1) / 2))
            chosen = chosen_outputs(outputs, target).sum()
        total = total + torch.autograd.grad(chosen, point)[0] * float(width / 2)
    gradients: torch.Tensor = total
    return gradients


STEPS = 15  # as TorchServe


def chosen_outputs(outputs: torch.Tensor, target: int | Sequence[int]) -> torch.Tensor:
    """Selects each row's output for its class, of n x classes. Raises IndexError for an unknown class."""
    targets = torch.as_tensor(target).expand(len(outputs))
    # Checked here: on a GPU, a wrong index would end the worker.
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

    def run(share: float) -> tuple[torch.Tensor, torch.Tensor]:
        point = (inputs.detach() * share).requires_grad_()
        return model(point), point

    return _integrated(run, target) * inputs
