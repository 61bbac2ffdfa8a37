"""Convolutions fused with what follows them: batch norm, a sum, an activation.

A network is traced to a graph. Batch norms are folded into the convolutions before them, and each convolution
does the sum and activation after it in one pass over its output, as oneDNN can: this saves the memory traffic
of those layers, most of the time that a ResNet does not spend multiplying.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

Activation: TypeAlias = tuple[str, tuple[float, ...]]

NONE: Activation = ("none", ())
RELU: Activation = ("relu", ())
SILU: Activation = ("swish", ())
HARDSWISH: Activation = ("hardswish", ())
# Layers, functions and methods.
ACTIVATIONS: dict[Any, Activation] = {
    nn.ReLU: RELU,
    torch.relu: RELU,
    nn.functional.relu: RELU,
    "relu": RELU,
    "relu_": RELU,
    nn.ReLU6: ("hardtanh", (0.0, 6.0)),
    nn.SiLU: SILU,
    nn.functional.silu: SILU,
    nn.Hardswish: HARDSWISH,
    nn.functional.hardswish: HARDSWISH,
}
SUMS = (operator.add, operator.iadd, torch.add)
_COMPUTED = ("call_module", "call_function", "call_method")


class Geometry(NamedTuple):
    """How a convolution moves over its input, as oneDNN's operators take it."""

    padding: list[int]
    stride: list[int]
    dilation: list[int]
    groups: int


class FusedConvolution(nn.Module):
    """A convolution without gradients, its bias, then a second input added, then an activation."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, geometry: Geometry, activation: Activation, adds: bool) -> None:
        super().__init__()
        self.geometry = geometry
        self.activation = activation
        self._name, self._scalars = activation[0], list(activation[1])
        self._adds = adds
        # Whether results are written over ``other``.
        self.in_place = False
        self._after_sum = None if activation == NONE else self._name

    def put(self, weight: torch.Tensor, bias: torch.Tensor | None, owner: Any = None) -> None:
        """Use these tensors: dense ones, or a weight in oneDNN's own layout, whose memory ``owner`` keeps."""
        # Plain tensors are not registered: modules cannot move or save a weight in oneDNN's layout.
        self.weight, self.bias, self._owner = weight, bias, owner

    def forward(self, rows: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        """n x channels x height x width to the same form; ``other`` has the output's shape."""
        if other is None:
            return torch.ops.mkldnn._convolution_pointwise(
                rows, self.weight, self.bias, *self.geometry, self._name, self._scalars, ""
            )
        weights = (self.weight, self.bias, *self.geometry)
        arguments: tuple[Any, ...] = (*weights, "add", 1.0, self._after_sum, [], "")
        if self.in_place:
            return torch.ops.mkldnn._convolution_pointwise_.binary(other, rows, *arguments)
        return torch.ops.mkldnn._convolution_pointwise.binary(rows, other, *arguments)

    def extra_repr(self) -> str:
        """What affects the results, apart from the tensors."""
        return f"{tuple(self.geometry)}, {self._name}{self._scalars}, adds={self._adds}{self.in_place}"


@dataclass(frozen=True, slots=True)
class ConvolutionSource:
    """The layers that a fused convolution replaces."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d | None

    def fold(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of the convolution with the norm in it."""
        with torch.no_grad():
            conv = self.conv if self.norm is None else fuse_conv_bn_eval(self.conv, self.norm)
        return conv.weight.detach(), None if conv.bias is None else conv.bias.detach()


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph that computes what a network computes; ``sources`` are the dense convolutions, by name.

    The fused ones among its modules have no tensors yet. All other modules are the network's own.
    """

    graph: fx.GraphModule
    sources: dict[str, ConvolutionSource]

    def use_dense_weights(self) -> None:
        """Let the fused convolutions compute with the weights of those that they replace."""
        for name, source in self.sources.items():
            fused_convolution(self.graph, name).put(*source.fold())


def fused_convolution(graph: fx.GraphModule, name: str) -> FusedConvolution:
    """The fused convolution of this name."""
    module = graph.get_submodule(name)
    assert isinstance(module, FusedConvolution)  # noqa: S101 - so it was named
    return module


class ValueShapes(fx.Interpreter):
    """Runs a graph and notes the shape of the rows of every value, by the name of its node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.shapes: dict[str, list[int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note what it computed."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.shapes[n.name] = list(value.shape[1:])
        return value


def trace(model: nn.Module) -> Fused | None:
    """The network with its convolutions fused, if it has any; None if it cannot be traced."""
    try:
        graph = fx.symbolic_trace(model)
    except Exception:  # noqa: BLE001 - tracing runs user code on stand-ins, which may raise anything
        return None
    uses = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    sources: dict[str, ConvolutionSource] = {}
    for node in list(graph.graph.nodes):
        conv = _module(graph, node)
        if _can_fuse(conv) and uses[str(node.target)] == 1:
            name = f"fused_{len(sources)}"
            sources[name] = _fuse_node(graph, node, name, uses)
    graph.graph.eliminate_dead_code()
    _reuse_outputs(graph)
    graph.graph.lint()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return Fused(graph, sources)


def _reuse_outputs(graph: fx.GraphModule) -> None:
    """Let sums write over their second input if it is not used afterwards."""
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    for node, place in order.items():
        module = _module(graph, node)
        if isinstance(module, FusedConvolution) and len(node.args) == 2:
            other = node.args[1]
            assert isinstance(other, fx.Node)  # noqa: S101 - so it was made
            before = [user for user in other.users if user is not node]
            if (
                # They make a tensor of their own.
                type(_module(graph, other)) in (FusedConvolution, nn.MaxPool2d)
                and node.args[0] is not other
                and all(order[user] < place for user in before)
                # Other modules might have returned a view of it.
                and all(isinstance(_module(graph, user), FusedConvolution) for user in before)
            ):
                module.in_place = True


def _can_fuse(conv: nn.Module | None) -> bool:
    return (
        type(conv) is nn.Conv2d
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and conv.weight.dtype == torch.float32
        and conv.weight.layout == torch.strided
        and type(conv.weight) in (nn.Parameter, torch.Tensor)
    )


def _fuse_node(graph: fx.GraphModule, node: fx.Node, name: str, uses: Counter[str]) -> ConvolutionSource:
    """Replace one convolution and what can be fused with it."""
    conv = _module(graph, node)
    assert isinstance(conv, nn.Conv2d)  # noqa: S101 - the caller looked
    norm_node = _only_user(node)
    norm = _norm(graph, norm_node, uses)
    last = norm_node if norm_node is not None and norm is not None else node
    # With groups, oneDNN does the sum separately, in bfloat16 not at all.
    last, other = _sum_after(last) if conv.groups == 1 else (last, None)
    activation_node = _only_user(last)
    activation = _activation(graph, activation_node)
    if other is not None and activation != RELU:
        activation = NONE
    if activation_node is not None and activation != NONE:
        last = activation_node
    geometry = Geometry(list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups)  # type: ignore[arg-type]
    graph.add_submodule(name, FusedConvolution(geometry, activation, other is not None))
    inputs = (node.args[0],) if other is None else (node.args[0], other)
    with graph.graph.inserting_before(last):
        fused = graph.graph.call_module(name, inputs)
    last.replace_all_uses_with(fused)
    for replaced in _chain(last, node):
        graph.graph.erase_node(replaced)
    return ConvolutionSource(conv, norm)


def _chain(last: fx.Node, first: fx.Node) -> Iterator[fx.Node]:
    """``last`` and the only users before it, back to ``first``."""
    path = [first]
    while path[-1] is not last:
        path.append(next(iter(path[-1].users)))
    return reversed(path)


def _norm(graph: fx.GraphModule, node: fx.Node | None, uses: Counter[str]) -> nn.BatchNorm2d | None:
    """The batch norm of a node, if it treats all batches alike and nothing else uses it."""
    norm = _module(graph, node)
    if type(norm) is not nn.BatchNorm2d or node is None or uses[str(node.target)] != 1:
        return None
    return None if norm.training or norm.running_mean is None else norm


def _sum_after(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The sum that takes the node's output, and its other term, if the node can do it."""
    user = _only_user(node)
    if user is None or user.op != "call_function" or user.target not in SUMS:
        return node, None
    if user.kwargs or len(user.args) != 2:
        return node, None
    others = [term for term in user.args if term is not node]
    # What is computed has the convolution's shape: no broadcasting is left to oneDNN. The graph does not say
    # so; comparing with the plain network finds the rest.
    if len(others) != 1 or not isinstance(others[0], fx.Node) or others[0].op not in _COMPUTED:
        return node, None
    return user, others[0]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(graph: fx.GraphModule, node: fx.Node | None) -> Activation:
    if node is None or node.op not in _COMPUTED or len(node.args) != 1:
        return NONE
    module = _module(graph, node)
    key: Any = node.target if module is None else type(module)
    return ACTIVATIONS.get(key, NONE)


def _module(graph: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    if node is None or node.op != "call_module":
        return None
    return graph.get_submodule(str(node.target))
