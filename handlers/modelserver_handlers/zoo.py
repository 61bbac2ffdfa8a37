"""torchvision's classifiers by name, with trained, random or your own weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision import models

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.weights import put_state, read_state

logger = logging.getLogger(__name__)


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
    norms = [(module, module.momentum) for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm, _ in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    model(batch)
    for norm, momentum in norms:
        norm.momentum = momentum
        norm.eval()
    _spread_logits(model, model(batch))


def _spread_logits(model: nn.Module, logits: torch.Tensor) -> None:
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    for layer in last:
        if layer.out_features != logits.shape[-1] or layer.bias is None:
            continue
        centre = logits.mean(dim=0)
        scale = SPREAD / (logits - centre).std().clamp_min(1e-6)
        layer.weight.mul_(scale)
        layer.bias.copy_((layer.bias - centre) * scale)


RANDOM = "random"


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Which network: ``weights`` is ``DEFAULT``, ``IMAGENET1K_V1`` and so on, ``random``, or a file."""

    arch: str
    weights: str = "DEFAULT"
    seed: int = 0

    @classmethod
    def parse(cls, settings: Any) -> NetworkSpec:
        """From ``handler: {torchvision: {arch, weights, seed}}``. Raises ModelLoadError that says why."""
        if not isinstance(settings, Mapping) or not settings.get("arch"):
            raise ModelLoadError("handler: torchvision: needs arch, the name of a torchvision classifier")
        unknown = set(settings) - {"arch", "weights", "seed"}
        if unknown:
            raise ModelLoadError(
                f"handler: torchvision: knows arch, weights and seed, not {', '.join(sorted(unknown))}"
            )
        seed = settings.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ModelLoadError(f"handler: torchvision: seed must be a whole number, got {seed!r}")
        return cls(str(settings["arch"]), str(settings.get("weights") or "DEFAULT"), seed)


@dataclass(frozen=True, slots=True)
class Network:
    """A network in evaluation mode on the CPU, its labels, and the transforms its weights need."""

    model: nn.Module
    labels: tuple[str, ...]
    transforms: Callable[..., Any] | None = None


def build_network(spec: NetworkSpec, folder: Path) -> Network:
    """Make the network; files of weights are found in ``folder``. Raises ModelLoadError that says why."""
    _check_arch(spec.arch)
    labels = labels_of(spec.arch)
    if spec.weights == RANDOM:
        return Network(random_network(spec.arch, spec.seed), labels)
    if spec.weights.endswith((".pth", ".pt")):
        model = models.get_model(spec.arch, weights=None)
        put_state(model, read_state(folder / spec.weights), Path(spec.weights).name)
        return Network(model.eval(), labels)
    weights = find_weights(spec.arch, spec.weights)
    return Network(_trained(spec.arch, weights), tuple(weights.meta["categories"]), weights.transforms())


def random_network(arch: str, seed: int) -> nn.Module:
    """Seeded random weights, calibrated so that different pictures get different answers."""
    _check_arch(arch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = models.get_model(arch, weights=None)
        calibrate(model, seed)
    return model


def find_weights(arch: str, name: str) -> Any:
    """torchvision's entry for trained weights. Raises ModelLoadError that lists the known names."""
    _check_arch(arch)
    known = models.get_model_weights(arch)
    if name not in known.__members__:
        names = ", ".join(known.__members__)
        raise ModelLoadError(f"{arch} has no weights {name}; there are {names}, {RANDOM}, or a .pth file")
    return known[name]


def labels_of(arch: str) -> tuple[str, ...]:
    """The class names of torchvision's weights for ``arch``, empty if it has none."""
    return next((tuple(weights.meta.get("categories", ())) for weights in models.get_model_weights(arch)), ())


def _check_arch(arch: str) -> None:
    if arch not in models.list_models(module=models):
        raise ModelLoadError(f"torchvision has no classifier {arch}; see torchvision.models.list_models()")


def _trained(arch: str, weights: Any) -> nn.Module:
    logger.info("Loading %s with %s", arch, weights)
    try:
        model: nn.Module = models.get_model(arch, weights=weights)
    except (URLError, OSError) as error:
        raise ModelLoadError(
            f"{weights} could not be downloaded from {weights.url} ({error});"
            " put the file beside the model and name it in weights"
        ) from error
    return model.eval()
