"""The weights of a fused network: made once, kept in a file, mapped by every worker."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx, nn

from modelserver_handlers.networks import cache, packed
from modelserver_handlers.networks.fusion import FusedConvolution
from modelserver_handlers.networks.precision import half, statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from modelserver_handlers.networks.fusion import Fused

logger = logging.getLogger(__name__)

FORMAT = 2
FOLDER = "weights"


class GraphPlan(Protocol):
    """What a fused network is made of: tensors, numbers and names, which a file can keep."""

    def key(self) -> str:
        """Differs if what is made would."""

    def make(self) -> dict[str, Any]:
        """All that the network needs besides the plain one."""

    def filled(self, content: Mapping[str, Any]) -> fx.GraphModule:
        """The network with what was made, now or by another process."""


def ready_graph(plan: GraphPlan, check: Callable[[fx.GraphModule], None]) -> fx.GraphModule:
    """The fused network with its weights.

    They are read from the cache, or written to it after ``check``, which raises for a network that is not as
    good. Without a cache, each process has its own.
    """
    folder = cache.cache_folder(FOLDER) if packed.can_share() else None
    if folder is None:
        graph = plan.filled(plan.make())
        check(graph)
        return graph
    path = folder / f"{plan.key()}.pt"
    with cache.locked(path.with_suffix(".lock")):
        stored = cache.read(path)
        if stored is not None:
            return plan.filled(stored)
        graph = plan.filled(made := plan.make())
        check(graph)
        try:
            cache.write(path, made)
        except (OSError, RuntimeError) as error:
            logger.warning("The optimised weights are not shared, they could not be written: %s", error)
            return graph
        cache.prune(folder)
        return plan.filled(cache.read(path) or made)


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """A fused network of a model, the shape of a typical batch, and the precision: fp32 or bf16."""

    model: nn.Module
    fused: Fused
    batch_shape: tuple[int, ...]
    precision: str

    def key(self) -> str:
        """Of the network, its weights, and this platform."""
        return key_of(self.fused, self.model, self.precision, self.batch_shape)

    def make(self) -> dict[str, Any]:
        """The convolutions' weights in oneDNN's layout, and other layers' tensors if they differ."""
        shapes = _input_shapes(self)
        convolutions = {}
        for name, source in self.fused.sources.items():
            weight, bias = source.fold()
            geometry = _convolution(self.fused.graph, name).geometry
            convolutions[name] = {
                "weight": storable(packed.pack(self._convert(weight), geometry, shapes[name])),
                "bias": None if bias is None else self._convert(bias).clone(),
            }
        return {"convolutions": convolutions, "rest": _rest(self)}

    def filled(self, content: Mapping[str, Any]) -> fx.GraphModule:
        """The graph with these tensors; the plain network's own layers stay as they are."""
        graph = self.fused.graph
        if self.precision != "fp32":
            own = _own_tensors(graph)
            replaced = {id(own[name]): _like(own[name], tensor) for name, tensor in content["rest"].items()}
            graph = copy.deepcopy(graph, replaced)
        for name, parts in content["convolutions"].items():
            weight = parts["weight"]
            _convolution(graph, name).put(restored(weight), parts["bias"], owner=weight)
        return graph

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        converted: torch.Tensor = half(tensor) if self.precision == "bf16" else tensor
        return converted


def key_of(fused: Fused, model: nn.Module, *more: object) -> str:
    """The key of what is made of a network."""
    graph = fused.graph
    outline = f"{graph.code}\n{graph}\n{model}"
    return cache.fingerprint(outline, model.state_dict(), FORMAT, *cache.platform(), *more)


def storable(weight: torch.Tensor) -> Any:
    """A weight in oneDNN's layout, as a file can keep it if this torch can share it."""
    return packed.to_bytes(weight) if packed.can_share() else weight


def restored(weight: Any) -> torch.Tensor:
    """The weight, in memory that ``weight`` owns."""
    return packed.from_bytes(weight) if isinstance(weight, dict) else weight


def _input_shapes(plan: FusedPlan) -> dict[str, list[int]]:
    """The shape of each fused convolution's input, found by running the network with dense weights."""
    for name, source in plan.fused.sources.items():
        _convolution(plan.fused.graph, name).put(*source.fold())
    finder = _ShapeFinder(plan.fused.graph)
    rows, *shape = plan.batch_shape
    finder.run(torch.zeros(1, *shape).contiguous(memory_format=torch.channels_last))
    return {name: [rows, *sizes] for name, sizes in finder.shapes.items()}


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


def _rest(plan: FusedPlan) -> dict[str, torch.Tensor]:
    """The other layers' tensors, if the precision makes them differ from the plain network's."""
    if plan.precision == "fp32":
        return {}
    return {name: half(tensor.detach()) for name, tensor in _own_tensors(plan.fused.graph).items()}


def _own_tensors(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    statistics = statistics_of(graph)
    named = (*graph.named_parameters(), *graph.named_buffers())
    return {name: tensor for name, tensor in named if id(tensor) not in statistics}


def _like(original: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=False) if isinstance(original, nn.Parameter) else tensor


def _convolution(graph: fx.GraphModule, name: str) -> FusedConvolution:
    module = graph.get_submodule(name)
    assert isinstance(module, FusedConvolution)  # noqa: S101 - so it was named
    return module
