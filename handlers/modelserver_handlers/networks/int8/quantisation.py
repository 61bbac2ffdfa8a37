"""From a network and a calibration set to one that computes in 8 bits, if that is as good."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks.fusion import FusedConvolution, trace
from modelserver_handlers.networks.int8.layers import (
    Dequantise,
    Quantise,
    QuantisedConvolution,
    QuantisedLayer,
    QuantisedLinear,
    QuantisedPool,
    Scale,
    Weight,
    has_dot_products,
    pack_convolution,
    pack_linear,
    top,
)
from modelserver_handlers.networks.optimize import (
    TYPICAL_ROWS,
    Substitute,
    contiguous,
    suits_dimensions,
    unsuited,
)
from modelserver_handlers.networks.prepared import key_of, ready_graph, restored, storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelserver_handlers.networks.fusion import Fused

logger = logging.getLogger(__name__)

# The share of rows whose first class must stay the same.
AGREEMENT = 0.99
# Rows that are computed at a time.
_CHUNK = 8
# The difference to a row with one output, of the largest output.
_NEAR = 0.05


class NotInt8Error(Exception):
    """Why a network does not compute in 8 bits."""


def quantise(model: Any, rows: torch.Tensor, typical: int, agreement: float | None = None) -> str:
    """Gives ``model`` a ``forward`` in 8 bits; what it is like, in words.

    ``rows`` are the calibration set, ``typical`` how many rows batches are expected to have. Raises
    NotInt8Error, and nothing is changed, if it cannot or must not be: fewer than 99 % of the rows, or the
    share ``agreement``, would have the same first class.
    """
    reason = unsuited(model) or _unfit(rows)
    if reason is not None:
        raise NotInt8Error(reason)
    began = time.perf_counter()
    try:
        with torch.inference_mode():
            graph, summary = _graph(model, rows, typical, AGREEMENT if agreement is None else agreement)
    except NotInt8Error:
        raise
    except Exception as error:  # whatever user code or an operator of this torch raises
        logger.debug("Quantising failed", exc_info=True)
        raise NotInt8Error(
            f"quantising it failed with {type(error).__name__}: {first_line(error)}"
        ) from error
    model.forward = Int8Forward(model, graph, rows.dim())
    if not has_dot_products():
        summary += "; activations have 7 bits, as this processor has no instructions for 8 (VNNI)"
    logger.info("The network computes in int8 after %.1f s: %s", time.perf_counter() - began, summary)
    return summary


def _unfit(rows: torch.Tensor) -> str | None:
    if not torch._C._has_mkldnn or not hasattr(torch.ops.onednn, "qconv2d_pointwise"):
        return "this torch has no int8 of oneDNN"
    if rows.dtype != torch.float32 or rows.dim() < 2 or not len(rows):
        return f"the calibration set has no rows of float32, but {tuple(rows.shape)} of {rows.dtype}"
    return None


def _graph(
    model: nn.Module, rows: torch.Tensor, typical: int, agreement: float
) -> tuple[fx.GraphModule, str]:
    fused = trace(model)
    if fused is None:
        raise NotInt8Error("it cannot be traced")
    plan = Int8Plan(model, fused, rows, 1 if typical == 1 else TYPICAL_ROWS, agreement)
    if not plan.layers:
        raise NotInt8Error("it has no convolution or linear layer that oneDNN has in 8 bits")
    graph = ready_graph(plan, plan.check)
    if plan.refused:
        raise NotInt8Error(plan.summary)
    return graph, plan.summary


@dataclass(frozen=True, slots=True)
class Layer:
    """One that will compute in 8 bits: a convolution, a linear layer or a pool."""

    node: fx.Node
    module: nn.Module


class Int8Plan:
    """A traced network, and the calibration set that decides about its scales."""

    def __init__(
        self, model: nn.Module, fused: Fused, rows: torch.Tensor, typical: int, agreement: float
    ) -> None:
        self.summary = ""
        self.refused = False
        self._model = model
        self._fused = fused
        self._rows = rows
        self._typical = typical
        self._agreement = agreement
        self._graph = fused.graph
        self.layers = list(self._find_layers())
        self._content: dict[str, Any] = {}
        self._builder: _Builder | None = None

    def _find_layers(self) -> Iterator[Layer]:
        taken: set[fx.Node] = set()
        for node in self._graph.graph.nodes:
            module = self._graph.get_submodule(node.target) if node.op == "call_module" else None
            if module is None or node.kwargs:
                continue
            pools = type(module) is nn.MaxPool2d and node.args[0] in taken and not module.return_indices
            if pools or type(module) is FusedConvolution or _is_linear(module):
                if not isinstance(module, nn.Linear):
                    taken.add(node)
                yield Layer(node, module)

    # -- what a file keeps

    def key(self) -> str:
        """Of the network, its weights, the calibration set and this platform."""
        digest = hashlib.sha256(self._rows.contiguous().numpy().tobytes()).hexdigest()
        shape = tuple(self._rows.shape)
        return key_of(self._fused, self._model, "int8", top(), self._agreement, shape, digest, self._typical)

    def make(self) -> dict[str, Any]:
        """Scales of all values, and the layers' weights."""
        for name, source in self._fused.sources.items():
            module = self._graph.get_submodule(name)
            assert isinstance(module, FusedConvolution)  # noqa: S101 - so it was named
            module.put(*source.fold())
        ranges = _Ranges(self._graph)
        for chunk in _chunks(self._rows):
            ranges.run(chunk)
        scales = {name: Scale.of(*each) for name, each in ranges.ranges.items()}
        for layer in self.layers:
            if isinstance(layer.module, nn.MaxPool2d):
                scales[layer.node.name] = scales[_node(layer.node.args[0]).name]
        self._content = {
            "scales": {name: [scale.step, scale.zero] for name, scale in scales.items()},
            "weights": {
                layer.node.name: self._weight(layer, scales[_node(layer.node.args[0]).name], ranges.shapes)
                for layer in self.layers
                if not isinstance(layer.module, nn.MaxPool2d)
            },
            "said": "",
            "refused": False,
        }
        return self._content

    def _weight(self, layer: Layer, into: Scale, shapes: Mapping[str, list[int]]) -> dict[str, Any]:
        shape = [self._typical, *shapes[_node(layer.node.args[0]).name]]
        if isinstance(layer.module, FusedConvolution):
            dense, bias = self._fused.sources[str(layer.node.target)].fold()
            weight = Weight.of(dense)
            packed = pack_convolution(weight, layer.module.geometry, into, shape)
        else:
            assert isinstance(layer.module, nn.Linear)  # noqa: S101 - pools have no weight
            dense, bias = layer.module.weight.detach(), layer.module.bias
            weight = Weight.of(dense)
            packed = pack_linear(weight)
        return {
            "weight": storable(packed),
            "steps": weight.steps,
            "bias": None if bias is None else bias.detach().clone(),
        }

    def filled(self, content: Mapping[str, Any]) -> fx.GraphModule:
        """The graph in 8 bits; the plain network's other layers stay as they are. If it is refused, the plain
        graph.
        """
        self.summary, self.refused = content["said"], content["refused"]
        if self.refused:
            return self._graph
        builder = _Builder(self._graph, {layer.node: layer.module for layer in self.layers}, content)
        graph = builder.build()
        self._builder = builder
        return graph

    # -- whether it is as good

    def check(self, graph: fx.GraphModule) -> None:
        """Refuses it, naming the worst layer, if too few rows have the same first class.

        That is kept too, so that other workers need not find out.
        """
        same, largest = 0.0, 0.0
        for chunk in _chunks(self._rows):
            expected, actual = _first(self._model.forward(chunk)), _first(graph(chunk))
            same += _agreeing(actual, expected)
            scale = float(expected.abs().max())
            largest = max(largest, float((actual - expected).abs().max()) / scale if scale else 0.0)
        self.summary = (
            f"the first class agrees for {same / len(self._rows):.1%} of the {len(self._rows)} rows of the"
            f" calibration set, the largest difference is {largest:.1%} of the largest output"
        )
        if same < self._agreement * len(self._rows):
            self.refused = True
            self.summary += f"; {self._worst()}"
            self._content["weights"] = {}
        self._content |= {"said": self.summary, "refused": self.refused}

    def _worst(self) -> str:
        assert self._builder is not None  # noqa: S101 - the graph was made
        errors = _Errors(self._graph, self._builder.layers)
        errors.run(next(_chunks(self._rows)))
        node, error = max(errors.errors.items(), key=lambda each: each[1])
        return f"most of it is lost in {self._own_name(node)}, whose output is off by {error:.0%}"

    def _own_name(self, node: fx.Node) -> str:
        """What the network calls a layer."""
        source = self._fused.sources.get(str(node.target))
        names = {id(module): name for name, module in self._model.named_modules()}
        return str(node.target) if source is None else names[id(source.conv)]


class _Builder:
    """Makes a graph in 8 bits of one in float32; ``layers`` are its layers in 8 bits, by their nodes."""

    def __init__(
        self, graph: fx.GraphModule, plain_layers: Mapping[fx.Node, nn.Module], content: Mapping[str, Any]
    ) -> None:
        self._plain = graph
        self._plain_layers = plain_layers
        self._weights = content["weights"]
        self._scales = {name: Scale(*each) for name, each in content["scales"].items()}
        self._root = fx.GraphModule(graph, graph.graph)
        self._graph = fx.Graph()
        # The new nodes for the values of the old ones, in either form.
        self._floats: dict[fx.Node, fx.Node] = {}
        self._eights: dict[fx.Node, fx.Node] = {}
        self.layers: dict[fx.Node, nn.Module] = {}

    def build(self) -> fx.GraphModule:
        for node in self._plain.graph.nodes:
            if node in self._plain_layers:
                self._layer(node, self._plain_layers[node])
            else:
                self._floats[node] = self._graph.node_copy(node, self._float)
        return fx.GraphModule(self._root, self._graph)

    def _layer(self, node: fx.Node, plain: nn.Module) -> None:
        module = self._module(node, plain)
        self.layers[node] = module
        inputs = tuple(self._eight(_node(each)) for each in node.args)
        made = self._call(f"int8_{node.name}", module, inputs)
        in_floats = isinstance(module, QuantisedLayer) and module.out is None
        (self._floats if in_floats else self._eights)[node] = made

    def _module(self, node: fx.Node, plain: nn.Module) -> nn.Module:
        if isinstance(plain, nn.MaxPool2d):
            return QuantisedPool(plain)
        into = self.scale(_node(node.args[0]))
        layer: QuantisedLayer
        if isinstance(plain, FusedConvolution):
            other = self.scale(_node(node.args[1])) if len(node.args) == 2 else None
            stays = other is not None or any(user in self._plain_layers for user in node.users)
            layer = QuantisedConvolution(plain, into, self.scale(node) if stays else None, other)
        else:
            layer = QuantisedLinear(into, None)
        parts = self._weights[node.name]
        layer.put(restored(parts["weight"]), parts["steps"], parts["bias"], owner=parts["weight"])
        return layer

    def scale(self, node: fx.Node) -> Scale:
        """Of a value."""
        return self._scales[node.name]

    def _eight(self, node: fx.Node) -> fx.Node:
        if node not in self._eights:
            module = Quantise(self.scale(node))
            self._eights[node] = self._call(f"quantise_{node.name}", module, (self._floats[node],))
        return self._eights[node]

    def _float(self, node: fx.Node) -> fx.Node:
        if node not in self._floats:
            module = Dequantise(self.scale(node))
            self._floats[node] = self._call(f"dequantise_{node.name}", module, (self._eights[node],))
        return self._floats[node]

    def _call(self, name: str, module: nn.Module, inputs: tuple[fx.Node, ...]) -> fx.Node:
        self._root.add_submodule(name, module)
        return self._graph.call_module(name, inputs)


class _Ranges(fx.Interpreter):
    """Runs a graph in float32 and notes the range and the shape of rows of every value."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.ranges: dict[str, tuple[float, float]] = {}
        self.shapes: dict[str, list[int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As the graph does."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.numel():
            low, high = map(float, value.aminmax())
            before = self.ranges.get(n.name, (low, high))
            self.ranges[n.name] = min(low, before[0]), max(high, before[1])
            self.shapes[n.name] = list(value.shape[1:])
        return value


class _Errors(fx.Interpreter):
    """Runs a graph in float32 and notes how far each layer's output is off if that layer has 8 bits."""

    def __init__(self, graph: fx.GraphModule, layers: Mapping[fx.Node, nn.Module]) -> None:
        super().__init__(graph)
        self._layers = layers
        self.errors: dict[fx.Node, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As the graph does."""
        layer = self._layers.get(n)
        inputs = [value.clone() for value in self.fetch_args_kwargs_from_env(n)[0]] if layer else []
        value = super().run_node(n)
        if isinstance(layer, QuantisedLayer):
            output = layer.in_floats(*inputs)
            self.errors[n] = float((output - value).norm() / value.norm().clamp_min(1e-12))
        return value


class Int8Forward(Substitute):
    """The ``forward`` of a network in 8 bits, for inputs with as many dimensions as the calibration set."""

    def __init__(self, model: nn.Module, graph: fx.GraphModule, dimensions: int) -> None:
        super().__init__(model)
        self._graph = graph
        self._dimensions = dimensions

    def suits(self, value: Any) -> bool:
        """A batch of float32 without gradients."""
        return suits_dimensions(value, self._dimensions)

    def compute(self, rows: torch.Tensor) -> Any:
        """The outputs, as contiguous as the network's own; for shapes that are wrong, its own error."""
        try:
            outputs = self._graph(_laid_out(rows))
        except RuntimeError as error:
            failure = first_line(error)
        else:
            return tree_map(contiguous, outputs)
        outputs = self.plain(rows)
        logger.warning("A batch of %s was not computed in int8: %s", tuple(rows.shape), failure)
        return outputs


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.weight.dtype == torch.float32


def _chunks(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    return (_laid_out(rows[at : at + _CHUNK]) for at in range(0, len(rows), _CHUNK))


def _laid_out(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous(memory_format=torch.channels_last) if rows.dim() == 4 else rows.contiguous()


def _first(outputs: Any) -> torch.Tensor:
    """The tensor with the scores of classes: rows x classes x ..."""
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() >= 2 and leaf.is_floating_point():
            return leaf
    raise NotInt8Error("its outputs are not scores of classes, so that none can be compared")


def _agreeing(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """How many rows have the same first class; with one class only, about the same value."""
    if expected.shape[1] > 1:
        same = actual.argmax(1) == expected.argmax(1)
    else:
        same = (actual - expected).abs() <= _NEAR * expected.abs().max()
    return float(same.flatten(1).float().mean(1).sum() if same.dim() > 1 else same.float().sum())


def _node(value: Any) -> fx.Node:
    assert isinstance(value, fx.Node)  # noqa: S101 - inputs of layers are values
    return value
