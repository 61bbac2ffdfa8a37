"""The weights of a fused network: made once, kept in a file, mapped by every worker."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from modelserver_handlers.networks import cache, packed
from modelserver_handlers.networks.fusion import FusedConvolution
from modelserver_handlers.networks.precision import half, statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from modelserver_handlers.networks.fusion import Fused

logger = logging.getLogger(__name__)

FORMAT = 1
FOLDER = "weights"


@dataclass(frozen=True, slots=True)
class Plan:
    """A fused network, the shape of a typical batch, and the precision."""

    fused: Fused
    batch_shape: tuple[int, ...]
    precision: str

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the fused network's precision."""
        converted: torch.Tensor = half(tensor) if self.precision == "bf16" else tensor
        return converted


def ready_graph(plan: Plan, model: nn.Module, check: Callable[[fx.GraphModule], None]) -> fx.GraphModule:
    """The fused network with its weights.

    They are read from the cache, or written to it after ``check``, which raises for a network that is not as
    good. Without a cache, each process has its own.
    """
    folder = cache.cache_folder(FOLDER) if packed.can_share() else None
    if folder is None:
        graph = _filled(plan, _make(plan))
        check(graph)
        return graph
    path = folder / f"{_key(plan, model)}.pt"
    with cache.locked(path.with_suffix(".lock")):
        stored = cache.read(path)
        if stored is not None:
            return _filled(plan, stored)
        graph = _filled(plan, made := _make(plan))
        check(graph)
        try:
            cache.write(path, made)
        except (OSError, RuntimeError) as error:
            logger.warning("The optimised weights are not shared, they could not be written: %s", error)
            return graph
        cache.prune(folder)
        return _filled(plan, cache.read(path) or made)


def _key(plan: Plan, model: nn.Module) -> str:
    graph = plan.fused.graph
    outline = f"{graph.code}\n{graph}\n{model}"
    return cache.fingerprint(
        outline, model.state_dict(), FORMAT, *cache.platform(), plan.precision, plan.batch_shape
    )


def _make(plan: Plan) -> dict[str, Any]:
    """Everything that the fused network needs besides the plain one, for storing in a file."""
    shapes = _input_shapes(plan)
    convolutions = {}
    for name, source in plan.fused.sources.items():
        weight, bias = source.fold()
        geometry = _convolution(plan.fused.graph, name).geometry
        parts = packed.pack(plan.convert(weight), geometry, shapes[name])
        convolutions[name] = {
            "weight": packed.to_bytes(parts) if packed.can_share() else parts,
            "bias": None if bias is None else plan.convert(bias).clone(),
        }
    return {"convolutions": convolutions, "rest": _rest(plan)}


def _input_shapes(plan: Plan) -> dict[str, list[int]]:
    """The shape of each fused convolution's input, found by running the network with dense weights."""
    for name, source in plan.fused.sources.items():
        _convolution(plan.fused.graph, name).put(*source.fold())
    finder = _ShapeFinder(plan.fused.graph)
    rows, *shape = plan.batch_shape
    finder.run(torch.zeros(1, *shape).contiguous(memory_format=torch.channels_last))
    return {name: [rows, *found] for name, found in finder.shapes.items()}


class _ShapeFinder(fx.Interpreter):
    """Runs a graph and notes the inputs of its fused convolutions."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.shapes: dict[str, list[int]] = {}

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As the graph does."""
        if target.startswith("fused_"):
            self.shapes[target] = list(args[0].shape[1:])
        return super().call_module(target, args, kwargs)


def _rest(plan: Plan) -> dict[str, torch.Tensor]:
    """The other layers' tensors, if the precision makes them differ from the plain network's."""
    if plan.precision == "fp32":
        return {}
    return {name: half(tensor.detach()) for name, tensor in _own_tensors(plan.fused.graph).items()}


def _own_tensors(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    kept = statistics_of(graph)
    named = (*graph.named_parameters(), *graph.named_buffers())
    return {name: tensor for name, tensor in named if id(tensor) not in kept}


def _filled(plan: Plan, content: Mapping[str, Any]) -> fx.GraphModule:
    """The graph with the tensors of :func:`_make`; the plain network's own layers stay as they are."""
    graph = plan.fused.graph
    if plan.precision != "fp32":
        own = _own_tensors(graph)
        replaced = {id(own[name]): _like(own[name], tensor) for name, tensor in content["rest"].items()}
        graph = copy.deepcopy(graph, replaced)
    for name, parts in content["convolutions"].items():
        weight = parts["weight"]
        packed_weight = packed.from_bytes(weight) if isinstance(weight, dict) else weight
        _convolution(graph, name).put(packed_weight, parts["bias"], owner=weight)
    return graph


def _like(original: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=False) if isinstance(original, nn.Parameter) else tensor


def _convolution(graph: fx.GraphModule, name: str) -> FusedConvolution:
    module = graph.get_submodule(name)
    assert isinstance(module, FusedConvolution)  # noqa: S101 - so it was named
    return module
