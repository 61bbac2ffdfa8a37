"""``optimize: auto``: an eager network computes the same in less time on a CPU.

The network keeps its identity, layers and weights: it only gets another ``forward`` for what serving needs,
one float tensor and no gradients. Otherwise, such as for explanations, its own ``forward`` runs. The new one
is only used if its outputs for a probe batch match those of the old one.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks.fusion import trace
from modelserver_handlers.networks.precision import full, half, is_eager
from modelserver_handlers.networks.prepared import FusedPlan, ready_graph

logger = logging.getLogger(__name__)

# Of the largest output. Lower precision implies errors: only nonsense is detected there.
TOLERANCES = {"fp32": 1e-4, "bf16": 1.0}
PROBE_ROWS = 2
TYPICAL_ROWS = 8  # oneDNN lays weights out for one row, or for several: how many hardly matters


def optimize(model: Any, shape: Sequence[int], precision: str = "fp32", rows: int = 8) -> bool:
    """Give ``model`` a faster ``forward``; False, and nothing is changed, if none is as good.

    ``shape`` is that of one row of input; batches are expected to have about ``rows``. With ``bf16`` the
    outputs need not be the same, only finite.
    """
    if isinstance(getattr(model, "forward", None), FastForward):
        return True
    started = time.perf_counter()
    try:
        with torch.inference_mode():
            graph = _checked_graph(model, tuple(shape), precision, rows)
    except NotAsGoodError as error:
        reason = str(error)
    except Exception as error:  # whatever user code or an operator of this torch raises
        logger.debug("Optimising failed", exc_info=True)
        reason = f"optimising it failed with {type(error).__name__}: {first_line(error)}"
    else:
        model.forward = FastForward(model, graph, precision)
        logger.info("Optimised the network in %.1f s (%s)", time.perf_counter() - started, precision)
        return True
    logger.info("The network runs as it is: %s", reason)
    return False


def unsuited(model: Any) -> str | None:
    """Why a model must not get another ``forward``, None if it may."""
    if not is_eager(model):
        return "it is not an eager network"
    if any(module.training for module in model.modules()):
        return "parts of it are in training mode"
    if has_hooks(list(model.modules())):
        return "it has hooks"
    if any(tensor.device.type != "cpu" for tensor in model.state_dict().values()):
        return "it is not on the processor"
    return None


class NotAsGoodError(Exception):
    """Why there is no faster equivalent of the network."""


def _checked_graph(model: nn.Module, shape: tuple[int, ...], precision: str, rows: int) -> fx.GraphModule:
    def check(graph: fx.GraphModule) -> None:
        probe = probe_batch(shape)
        expected = model.forward(probe)
        if not _depends_on_rows(expected):
            raise NotAsGoodError("its outputs hardly depend on its inputs, so that none can be compared")
        difference = deviation(FastForward(model, graph, precision).compute(probe), expected)
        if not difference <= TOLERANCES[precision]:
            raise NotAsGoodError(f"optimised, its outputs would differ by {difference:.1e} of the largest")
        logger.info("The optimised network's outputs differ by %.1e of the largest", difference)

    if reason := unsuited(model):
        raise NotAsGoodError(reason)
    if not torch._C._has_mkldnn or not torch.backends.mkldnn.enabled:
        raise NotAsGoodError("this torch has no oneDNN")
    if len(shape) != 3:
        raise NotAsGoodError("its inputs are not pictures")
    fused = trace(model)
    if fused is None or not fused.sources:
        raise NotAsGoodError("it has no convolutions that can be joined with what follows them")
    typical = 1 if rows == 1 else TYPICAL_ROWS
    return ready_graph(FusedPlan(model, fused, (typical, *shape), precision), check)


def probe_batch(shape: Sequence[int]) -> torch.Tensor:
    """A seeded batch with about the values of normalised inputs."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(PROBE_ROWS, *shape, generator=generator)


def deviation(outputs: Any, expected: Any) -> float:
    """The largest difference of two outputs, relative to the largest value in its tensor.

    Infinite for outputs of another form, that are not finite, or that are all zero and so prove nothing.
    """
    values, references = tree_leaves(outputs), tree_leaves(expected)
    if len(values) != len(references):
        return float("inf")
    return max(
        (_tensor_deviation(one, other) for one, other in zip(values, references, strict=True)),
        default=float("inf"),
    )


def _tensor_deviation(one: Any, other: Any) -> float:
    if not isinstance(other, torch.Tensor):
        return 0.0 if one == other else float("inf")
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not other.numel():
        return 0.0
    scale = float(other.double().abs().max())
    difference = float((one.double() - other.double()).abs().max())
    return difference / scale if scale and math.isfinite(difference + scale) else float("inf")


def _depends_on_rows(outputs: Any) -> bool:
    """Whether the probe's rows get different outputs: otherwise, equal ones prove nothing."""
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return any(
        len(tensor) == PROBE_ROWS and deviation(tensor[0], tensor[1]) > TOLERANCES["fp32"]
        for tensor in tensors
    )


class Substitute:
    """Another ``forward`` for a network; its own runs for all inputs that do not suit."""

    def __init__(self, model: nn.Module) -> None:
        self.plain = model.forward
        self._modules = list(model.modules())

    def suits(self, value: Any) -> bool:
        """Whether the substitute is made for this input."""
        raise NotImplementedError

    def compute(self, rows: torch.Tensor) -> Any:
        """The outputs for an input that suits."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs."""
        if len(args) == 1 and not kwargs and self.suits(args[0]) and not self._is_changed():
            return self.compute(args[0])
        return self.plain(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the network gets its own ``forward``, as it may be changed."""
        return copy.deepcopy(self.plain, memo)

    def _is_changed(self) -> bool:
        """Whether there are hooks, or the network is in training mode."""
        return self._modules[0].training or has_hooks(self._modules)


class FastForward(Substitute):
    """The optimised ``forward`` of a network."""

    def __init__(self, model: nn.Module, graph: Callable[[torch.Tensor], Any], precision: str) -> None:
        super().__init__(model)
        self._graph = graph
        self._bf16 = precision == "bf16"

    def suits(self, value: Any) -> bool:
        """One batch of float32 pictures, without gradients."""
        return suits_dimensions(value, 4)

    def compute(self, rows: torch.Tensor) -> Any:
        """The outputs for n x channels x height x width, as contiguous as the network's own."""
        rows = rows.contiguous(memory_format=torch.channels_last)
        outputs = self._graph(half(rows) if self._bf16 else rows)
        return tree_map(contiguous, tree_map(full, outputs) if self._bf16 else outputs)


def contiguous(value: Any) -> Any:
    """A tensor in its natural layout; anything else as it is."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def suits_dimensions(value: Any, dimensions: int) -> bool:
    """Whether it is a batch of float32 on the processor with so many dimensions, without gradients."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == dimensions
        and value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.numel() > 0
        and not torch.is_grad_enabled()
    )


def has_hooks(modules: list[nn.Module]) -> bool:
    """Whether any of the modules has forward hooks."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)
