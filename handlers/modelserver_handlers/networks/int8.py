"""``precision: int8``: convolutions and linear layers in 8 bits, by oneDNN, if the answers stay as good.

The network is traced and fused as for ``optimize: auto``. Weights get a scale for each output channel. What
flows between layers gets one for each tensor, from its smallest and largest value on the calibration set
(post-training quantisation as in Krishnamoorthi, 2018, arXiv:1806.08342). Values stay in 8 bits from layer to
layer; all other operators get float32.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks.fusion import Fused, FusedConvolution, Geometry, ValueShapes, trace
from modelserver_handlers.networks.optimize import (
    TYPICAL_ROWS,
    Substitute,
    contiguous,
    suits_dimensions,
    unsuited,
)
from modelserver_handlers.networks.prepared import key_of, ready_graph, restored, storable

logger = logging.getLogger(__name__)


WEIGHT_TOP = 127


@functools.cache
def top() -> int:
    """The largest value of an activation: of 8 bits, or of 7.

    Without the instructions for dot products of 8 bits, oneDNN adds two products in 16 bits, which
    activations of 8 bits could exceed.
    """
    return 255 if has_dot_products() else 127


def is_able() -> bool:
    """Whether the processor computes faster in 8 bits than in float32: AVX2 or later."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def has(feature: str) -> bool:
    """Whether torch knows the processor to have it; older torch knows fewer."""
    return bool(getattr(torch.cpu, f"_is_{feature}_supported", bool)())


@functools.cache
def has_dot_products() -> bool:
    """Whether the processor has VNNI, of AVX-512 or of its own, or AMX."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return has("vnni") or has("amx_tile") or bool(capabilities.get("avx_vnni"))


@dataclass(frozen=True, slots=True)
class Scale:
    """8 bits to numbers: (value - ``zero``) * ``step``."""

    step: float
    zero: int

    @classmethod
    def of(cls, smallest: float, largest: float) -> Scale:
        """The scale for numbers in this range; zero is exact."""
        low, high = min(smallest, 0.0), max(largest, 0.0)
        step = (high - low) / top() or 1.0
        return cls(step, round(-low / step))


class _Scaled(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale


class Quantise(_Scaled):
    """float32 to 8 bits."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of any shape to one of the same shape and layout."""
        # Converting cuts the fraction off.
        scaled = value.mul(1 / self.scale.step).add_(self.scale.zero + 0.5)
        return scaled.clamp_(0, top()).to(torch.uint8)


class Dequantise(_Scaled):
    """8 bits to float32."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of any shape to one of the same shape and layout."""
        return value.float().sub_(self.scale.zero).mul_(self.scale.step)


class QuantisedPool(nn.Module):
    """A max pool of 8 bits."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        pairs = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self._arguments = [[each, each] if isinstance(each, int) else list(each) for each in pairs]
        self._ceil = pool.ceil_mode

    def forward(self, value: torch.Tensor) -> Any:
        """n x channels x height x width."""
        return torch.ops.quantized.max_pool2d(value, *self._arguments, self._ceil)


@dataclass(frozen=True, slots=True)
class Weight:
    """A layer's weight in 8 bits (out x ...), and the step of each output."""

    values: torch.Tensor
    steps: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor) -> Weight:
        """The nearest to these numbers."""
        rows = weight.flatten(1)
        steps = rows.abs().amax(1).clamp_min(1e-12) / WEIGHT_TOP
        values = (rows / steps[:, None]).round_().to(torch.int8).view(weight.shape)
        return cls(values, steps)


class QuantisedLayer(nn.Module):
    """A convolution or linear layer whose input has 8 bits; its output has if ``out`` is given."""

    def __init__(self, into: Scale, out: Scale | None, other: Scale | None = None) -> None:
        super().__init__()
        self.into = into
        self.out = out
        self.other = other

    def put(
        self, packed: torch.Tensor, steps: torch.Tensor, bias: torch.Tensor | None, owner: Any = None
    ) -> None:
        """Use a weight in oneDNN's layout, whose memory ``owner`` keeps, with the step of each output."""
        # Plain tensors are not registered: modules cannot move or save a weight in oneDNN's layout.
        self._packed, self._steps, self._bias, self._owner = packed, steps, bias, owner
        self._zeros = torch.zeros(len(steps), dtype=torch.int32)

    def in_floats(self, rows: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """The outputs in float32, for inputs in float32."""
        others = () if other is None or self.other is None else (Quantise(self.other)(other),)
        output: torch.Tensor = self(Quantise(self.into)(rows), *others)
        return output if self.out is None else Dequantise(self.out)(output)

    def _output(self) -> tuple[float, int, torch.dtype]:
        return (1.0, 0, torch.float32) if self.out is None else (self.out.step, self.out.zero, torch.uint8)


class QuantisedConvolution(QuantisedLayer):
    """A FusedConvolution in 8 bits; ``other`` is the scale of its second input, None without one."""

    def __init__(
        self, plain: FusedConvolution, into: Scale, out: Scale | None, other: Scale | None = None
    ) -> None:
        super().__init__(into, out, other)
        padding, stride, dilation, groups = plain.geometry
        self._moves = (stride, padding, dilation, groups)
        self._name, self._scalars = plain.activation
        self._in_place = plain.in_place

    def forward(self, rows: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        """n x channels x height x width of 8 bits; ``other``, of the output's shape, too."""
        weights = (self.into.step, self.into.zero, self._packed, self._steps, self._zeros)
        if other is None or self.other is None:
            return torch.ops.onednn.qconv2d_pointwise(
                rows, *weights, self._bias, *self._moves, *self._output(), self._name, list(self._scalars), ""
            )
        sums = other.contiguous(memory_format=torch.channels_last)
        if sums is other and not self._in_place:
            sums = other.clone()
        after = None if self._name == "none" else self._name
        sums_scale = (self.other.step, self.other.zero)
        arguments: tuple[Any, ...] = (*self._moves, *self._output(), *sums_scale, "sum", 1.0, after, [], "")
        return torch.ops.onednn.qconv2d_pointwise.binary(rows, *weights, sums, self._bias, *arguments)


class QuantisedLinear(QuantisedLayer):
    """A linear layer with float32 outputs."""

    def forward(self, rows: torch.Tensor) -> Any:
        """... x inputs of 8 bits to ... x outputs."""
        flat = rows.reshape(-1, rows.shape[-1])
        weights = (self.into.step, self.into.zero, self._packed, self._steps, self._zeros)
        outputs = torch.ops.onednn.qlinear_pointwise(
            flat, *weights, self._bias, *self._output(), "none", [], ""
        )
        return outputs.view(*rows.shape[:-1], -1)


def pack_convolution(weight: Weight, geometry: Geometry, into: Scale, shape: list[int]) -> torch.Tensor:
    """The weight in oneDNN's layout for inputs of about that shape."""
    padding, stride, dilation, groups = geometry
    packed: torch.Tensor = torch.ops.onednn.qconv_prepack(
        weight.values, weight.steps, into.step, into.zero, stride, padding, dilation, groups, shape
    )
    return packed


def pack_linear(weight: Weight) -> torch.Tensor:
    """The weight in oneDNN's layout."""
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight.values, None)
    return packed


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


class Int8Plan:
    """A traced network, and the calibration set that decides about its scales.

    ``layers`` will compute in 8 bits: convolutions, linear layers and pools.
    """

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
        self.layers: dict[fx.Node, nn.Module] = {}
        self._find_layers()
        self._content: dict[str, Any] = {}
        self._quantised: dict[fx.Node, nn.Module] = {}

    def _find_layers(self) -> None:
        for node in self._graph.graph.nodes:
            module = self._graph.get_submodule(node.target) if node.op == "call_module" else None
            if module is None or node.kwargs:
                continue
            pools = type(module) is nn.MaxPool2d and not module.return_indices
            if pools and isinstance(self.layers.get(_input(node)), nn.Linear | None):
                continue
            if pools or type(module) is FusedConvolution or _is_linear(module):
                self.layers[node] = module

    # -- what a file keeps

    def key(self) -> str:
        """A key that differs for another network, other weights, another calibration set or platform."""
        digest = hashlib.sha256(self._rows.contiguous().numpy().tobytes()).hexdigest()
        shape = tuple(self._rows.shape)
        return key_of(self._fused, self._model, "int8", top(), self._agreement, shape, digest, self._typical)

    def make(self) -> dict[str, Any]:
        """Scales of all values, and the layers' weights."""
        self._fused.use_dense_weights()
        ranges = _Ranges(self._graph)
        for chunk in _chunks(self._rows):
            ranges.run(chunk)
        scales = {name: Scale.of(*each) for name, each in ranges.ranges.items()}
        weights = {}
        for node, module in self.layers.items():
            source = _input(node).name
            if isinstance(module, nn.MaxPool2d):
                scales[node.name] = scales[source]
            else:
                shape = [self._typical, *ranges.shapes[source]]
                weights[node.name] = self._weight(node, module, scales[source], shape)
        self._content = {
            "scales": {name: [scale.step, scale.zero] for name, scale in scales.items()},
            "weights": weights,
            "said": "",
            "refused": False,
        }
        return self._content

    def _weight(self, node: fx.Node, module: Any, into: Scale, shape: list[int]) -> dict[str, Any]:
        if isinstance(module, FusedConvolution):
            dense, bias = self._fused.sources[str(node.target)].fold()
            weight = Weight.of(dense)
            packed = pack_convolution(weight, module.geometry, into, shape)
        else:
            weight, bias = Weight.of(module.weight.detach()), module.bias
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
        builder = _Builder(self._graph, self.layers, content)
        self._quantised = builder.layers
        return builder.build()

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
        errors = _Errors(self._graph, self._quantised)
        errors.run(next(_chunks(self._rows)))
        node, error = max(errors.errors.items(), key=lambda each: each[1])
        return f"most of it is lost in {self._own_name(node)}, whose output is off by {error:.0%}"

    def _own_name(self, node: fx.Node) -> str:
        """The name of a layer in the network."""
        source = self._fused.sources.get(str(node.target))
        names = {id(module): name for name, module in self._model.named_modules()}
        return str(node.target) if source is None else names[id(source.conv)]


class _Builder:
    """Builds a graph in 8 bits from one in float32; ``layers`` maps its nodes to layers in 8 bits."""

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
        inputs: Any = node.args
        module = self._module(node, plain, [self._scales[each.name] for each in inputs])
        self.layers[node] = module
        made = self._call(f"int8_{node.name}", module, tuple(map(self._eight, inputs)))
        in_floats = isinstance(module, QuantisedLayer) and module.out is None
        (self._floats if in_floats else self._eights)[node] = made

    def _module(self, node: fx.Node, plain: nn.Module, scales: list[Scale]) -> nn.Module:
        if isinstance(plain, nn.MaxPool2d):
            return QuantisedPool(plain)
        into, *others = scales
        layer: QuantisedLayer
        if isinstance(plain, FusedConvolution):
            stays = others or any(user in self._plain_layers for user in node.users)
            out = self._scales[node.name] if stays else None
            layer = QuantisedConvolution(plain, into, out, *others)
        else:
            layer = QuantisedLinear(into, None)
        parts = self._weights[node.name]
        layer.put(restored(parts["weight"]), parts["steps"], parts["bias"], owner=parts["weight"])
        return layer

    def _eight(self, node: fx.Node) -> fx.Node:
        if node not in self._eights:
            module = Quantise(self._scales[node.name])
            self._eights[node] = self._call(f"quantise_{node.name}", module, (self._floats[node],))
        return self._eights[node]

    def _float(self, node: fx.Node) -> fx.Node:
        if node not in self._floats:
            module = Dequantise(self._scales[node.name])
            self._floats[node] = self._call(f"dequantise_{node.name}", module, (self._eights[node],))
        return self._floats[node]

    def _call(self, name: str, module: nn.Module, inputs: tuple[fx.Node, ...]) -> fx.Node:
        self._root.add_submodule(name, module)
        return self._graph.call_module(name, inputs)


class _Ranges(ValueShapes):
    """Runs a graph in float32 and notes the range of every value, too."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.ranges: dict[str, tuple[float, float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note what it computed."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.numel():
            low, high = map(float, value.aminmax())
            before = self.ranges.get(n.name, (low, high))
            self.ranges[n.name] = min(low, before[0]), max(high, before[1])
        return value


class _Errors(fx.Interpreter):
    """Runs a graph in float32 and notes how far each layer's output is off if that layer has 8 bits."""

    def __init__(self, graph: fx.GraphModule, layers: Mapping[fx.Node, nn.Module]) -> None:
        super().__init__(graph)
        self._layers = layers
        self.errors: dict[fx.Node, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note what it computed."""
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


def _input(node: fx.Node) -> fx.Node:
    """The value that a layer gets."""
    return node.all_input_nodes[0]


MOST_ROWS = 128


def calibration_rows(folder: Path, name: str, prepare: Callable[[list[Any]], Any]) -> torch.Tensor:
    """The network's input for the calibration set: n rows, at most 128.

    ``name`` is a file, a folder or a pattern (`samples/*.jpg`) in the archive's ``folder``; ``prepare`` makes
    the network's input of what a client may send. Of a file ``.npy`` each row is an input as it is, of a
    list in a file ``.json`` each element is one to prepare, and so is any other file. Files that cannot be
    read are left out. Raises NotInt8Error if none can, or their rows have different shapes.
    """
    rows: list[torch.Tensor] = []
    failures: list[str] = []
    for path in _files(folder, name):
        try:
            rows += _read(path, prepare)
        except Exception as error:  # noqa: BLE001 - libraries and handlers raise anything for broken files
            failures.append(f"{path.name}: {first_line(error)}")
        if len(rows) >= MOST_ROWS:
            break
    if failures:
        logger.warning("Left out of the calibration set: %s", "; ".join(failures[:5]))
    if not rows:
        raise NotInt8Error(f"the calibration set {name!r} has no file that can be read")
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise NotInt8Error(f"the rows of the calibration set have different shapes: {sorted(shapes)[:3]}")
    return torch.stack(rows[:MOST_ROWS])


def _files(folder: Path, name: str) -> list[Path]:
    """The files of a calibration set, by name. Raises NotInt8Error without any, or if they are elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise NotInt8Error(f"the calibration set {name!r} must be in the archive")
    place = folder / name
    try:
        candidates = [place] if place.is_file() else place.iterdir() if place.is_dir() else folder.glob(name)
        files = sorted(path for path in candidates if path.is_file())
    except (OSError, ValueError, NotImplementedError) as error:
        raise NotInt8Error(f"the calibration set {name!r} cannot be read: {error}") from error
    if not files:
        raise NotInt8Error(f"the archive has no calibration set {name!r}, or it is empty")
    return files


def _read(path: Path, prepare: Callable[[list[Any]], Any]) -> Iterator[torch.Tensor]:
    if path.suffix == ".npy":
        rows = numpy.load(path, mmap_mode="r", allow_pickle=False)[:MOST_ROWS]
        return iter(torch.from_numpy(rows.astype(numpy.float32)))
    if path.suffix == ".json":
        elements = json.loads(path.read_bytes())
        if not isinstance(elements, list):
            raise ValueError("a list of inputs is needed")
        return (row for each in elements[:MOST_ROWS] for row in _prepared(each, prepare))
    return iter(_prepared(path.read_bytes(), prepare))


def _prepared(value: Any, prepare: Callable[[list[Any]], Any]) -> torch.Tensor:
    rows = prepare([{"data": value}])
    if not isinstance(rows, torch.Tensor) or not rows.numel():
        raise ValueError("it cannot be prepared")
    return rows
