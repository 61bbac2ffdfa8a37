"""``precision: int8``: convolutions and linear layers in 8 bits, by oneDNN.

The network is traced and fused as for ``optimize: auto``. Weights get a scale for each output channel. What
flows between layers gets one for each tensor, from its smallest and largest value on the calibration set
(post-training quantisation as in Krishnamoorthi, 2018, arXiv:1806.08342). Values stay in 8 bits from layer to
layer; all other operators get float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from modelserver_handlers.networks.fusion import FusedConvolution, Geometry

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
        """For numbers in this range, and zero, which is exact."""
        low, high = min(smallest, 0.0), max(largest, 0.0)
        step = (high - low) / top() or 1.0
        return cls(step, round(-low / step))


class Quantise(nn.Module):
    """float32 to 8 bits."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Of any shape; the same layout."""
        # Converting cuts the fraction off.
        scaled = value.mul(1 / self.scale.step).add_(self.scale.zero + 0.5)
        return scaled.clamp_(0, top()).to(torch.uint8)


class Dequantise(nn.Module):
    """8 bits to float32."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Of any shape; the same layout."""
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
    """Of a layer: 8 bits, out x ..., and the step of each output."""

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
        # Not registered: modules cannot move or save a weight in oneDNN's layout.
        object.__setattr__(self, "_packed", packed)
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_zeros", torch.zeros(len(steps), dtype=torch.int32))
        object.__setattr__(self, "_bias", bias)
        object.__setattr__(self, "_owner", owner)

    def in_floats(self, rows: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """The same for float32 inputs and outputs."""
        others = () if other is None or self.other is None else (Quantise(self.other)(other),)
        output: torch.Tensor = self(Quantise(self.into)(rows), *others)
        return output if self.out is None else Dequantise(self.out)(output)

    def _output(self) -> tuple[float, int, torch.dtype]:
        return (1.0, 0, torch.float32) if self.out is None else (self.out.step, self.out.zero, torch.uint8)


class QuantisedConvolution(QuantisedLayer):
    """As a FusedConvolution; ``other`` is the scale of the second input, None if there is none."""

    def __init__(self, plain: FusedConvolution, into: Scale, out: Scale | None, other: Scale | None) -> None:
        super().__init__(into, out, other)
        padding, stride, dilation, groups = plain.geometry.arguments()
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
        outputs = torch.ops.onednn.qlinear_pointwise(
            flat, self.into.step, self.into.zero, self._packed, self._steps, self._zeros, self._bias,
            *self._output(), "none", [], "",
        )  # fmt: skip
        return outputs.view(*rows.shape[:-1], -1)


def pack_convolution(weight: Weight, geometry: Geometry, into: Scale, shape: list[int]) -> torch.Tensor:
    """The weight in oneDNN's layout for inputs of about that shape."""
    padding, stride, dilation, groups = geometry.arguments()
    packed: torch.Tensor = torch.ops.onednn.qconv_prepack(
        weight.values, weight.steps, into.step, into.zero, stride, padding, dilation, groups, shape
    )
    return packed


def pack_linear(weight: Weight) -> torch.Tensor:
    """The weight in oneDNN's layout."""
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight.values, None)
    return packed
