"""Layers in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.handlers.processor import needs_int8
from torch import nn

from modelserver_handlers.networks.fusion import NONE, RELU, SILU, Activation, FusedConvolution, Geometry
from modelserver_handlers.networks.int8 import layers
from modelserver_handlers.networks.int8.layers import (
    Dequantise,
    Quantise,
    QuantisedConvolution,
    QuantisedLayer,
    QuantisedLinear,
    QuantisedPool,
    Scale,
    Weight,
    pack_convolution,
    pack_linear,
    top,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

INTO = Scale.of(-3.0, 3.0)


@pytest.fixture
def _fresh_top() -> Iterator[None]:
    top.cache_clear()
    yield
    top.cache_clear()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded, from -3 to 3."""
    generator = torch.Generator().manual_seed(seed)
    actual = torch.randn(*shape, generator=generator).clamp(-3, 3)
    return actual.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else actual


def steps_off(actual: torch.Tensor, expected: torch.Tensor, scale: Scale) -> float:
    """The largest difference, in steps of a scale."""
    return float((actual - expected).abs().max()) / scale.step


def plain_convolution(activation: Activation, groups: int = 1, *, adds: bool = False) -> FusedConvolution:
    """8 to 8 channels, 3 x 3, padded."""
    plain = FusedConvolution(Geometry((1, 1), (1, 1), (1, 1), groups), activation, adds)
    plain.put(numbers(8, 8 // groups, 3, 3, seed=1) / 10, numbers(8, seed=2))
    return plain


def quantised(plain: FusedConvolution, out: Scale | None, other: Scale | None = None) -> QuantisedConvolution:
    """The same in 8 bits."""
    layer = QuantisedConvolution(plain, INTO, out, other)
    weight = Weight.of(plain.weight)
    layer.put(pack_convolution(weight, plain.geometry, INTO, [2, 8, 5, 5]), weight.steps, plain.bias)
    return layer


def as_expected(layer: QuantisedLayer, expected: torch.Tensor, *inputs: torch.Tensor) -> bool:
    """Whether the outputs are the expected ones but for rounding."""
    with torch.inference_mode():
        error = float((layer.in_floats(*inputs) - expected).abs().max())
    own_rounding = 0.0 if layer.out is None else layer.out.step / 2
    return error < own_rounding + 0.03 * float(expected.abs().max())


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-3.0, -1.0)])
def test_a_scale_holds_its_range_and_zero(low: float, high: float) -> None:
    """Numbers of the range come back to within half a step, and zero exactly."""
    scale = Scale.of(low, high)
    values = torch.tensor([low, 0.0, high])
    actual = Dequantise(scale)(Quantise(scale)(values))

    assert 0 <= scale.zero <= top()
    assert actual[1] == 0
    assert steps_off(actual, values, scale) <= 1.0


def test_a_scale_of_zeros_has_a_step() -> None:
    """A value that is always zero has some step."""
    assert Scale.of(0.0, 0.0) == Scale(1.0, 0)


def test_values_beyond_the_range_are_clamped() -> None:
    """What the calibration set did not have becomes the smallest or largest value, in the input's layout."""
    actual = Quantise(Scale.of(-1.0, 1.0))(100 * numbers(2, 3, 4, 4))

    assert (int(actual.min()), int(actual.max())) == (0, top())
    assert actual.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("has_dot_products", "largest"), [(True, 255), (False, 127)])
@pytest.mark.usefixtures("_fresh_top")
def test_activations_have_7_bits_without_vnni(
    has_dot_products: bool, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without VNNI, sums of products in 16 bits leave room for 7."""
    monkeypatch.setattr(layers, "has_dot_products", lambda: has_dot_products)

    assert top() == largest


@pytest.mark.parametrize(("capability", "able"), [("DEFAULT", False), ("AVX2", True), ("AVX512", True)])
def test_processors_need_avx2(capability: str, able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 is the least."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    assert layers.is_able() is able


def test_weights_have_a_scale_for_each_output() -> None:
    """A small row beside a large one keeps its precision, and one of zeros is no problem."""
    rows = torch.stack([numbers(16) * 1000, numbers(16) / 1000, torch.zeros(16)])
    weight = Weight.of(rows)

    assert weight.values.dtype == torch.int8
    assert ((weight.values * weight.steps[:, None] - rows).abs() <= weight.steps[:, None] * 0.51).all()


@needs_int8
@pytest.mark.parametrize("activation", [NONE, RELU, ("hardtanh", (0.0, 6.0)), SILU, ("hardswish", ())])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("out", [None, Scale.of(-6.0, 6.0)])
def test_convolutions_match_their_plain_ones(activation: Any, groups: int, out: Scale | None) -> None:
    """Convolutions, depthwise ones too, with their activation, to float32 and to 8 bits."""
    plain = plain_convolution(activation, groups)
    rows = numbers(2, 8, 5, 5)

    assert as_expected(quantised(plain, out), plain(rows), rows)


@needs_int8
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_second_term_is_added(activation: Activation, in_place: bool) -> None:
    """A second term is added, and overwritten only where that is allowed."""
    plain = plain_convolution(activation, adds=True)
    rows, other = numbers(2, 8, 5, 5), numbers(2, 8, 5, 5, seed=5)
    expected = plain(rows, other)
    if in_place:
        plain.write_in_place()
    scale = Scale.of(-9.0, 9.0)
    layer = quantised(plain, scale, INTO)
    with torch.inference_mode():
        term = Quantise(INTO)(other)
        before = term.clone()
        actual = layer(Quantise(INTO)(rows), term)

    assert torch.equal(term, actual if in_place else before)
    assert steps_off(Dequantise(scale)(actual), expected, scale) < 2.5


@needs_int8
def test_a_second_term_may_have_any_layout() -> None:
    """A second term may have any layout, as other operators make it."""
    plain = plain_convolution(RELU, adds=True)
    rows, other = numbers(2, 8, 5, 5), numbers(2, 8, 5, 5, seed=5)
    expected = plain(rows, other)
    plain.write_in_place()
    layer = quantised(plain, Scale.of(-9.0, 9.0), INTO)

    assert as_expected(layer, expected, rows, other.contiguous())


@needs_int8
@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16), (2, 3, 4, 16)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_layers_match_their_plain_ones(shape: tuple[int, ...], biased: bool) -> None:
    """Inputs of any number of dimensions, with and without a bias."""
    plain = nn.Linear(16, 6, bias=biased).requires_grad_(False)
    plain.weight.copy_(numbers(6, 16, seed=4))
    weight = Weight.of(plain.weight)
    layer = QuantisedLinear(INTO, None)
    layer.put(pack_linear(weight), weight.steps, plain.bias)
    rows = numbers(*shape)

    assert as_expected(layer, plain(rows), rows)


@needs_int8
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 1), ceil_mode=True)]
)
def test_pools_match_their_plain_ones(pool: nn.MaxPool2d) -> None:
    """The largest value is the same in 8 bits."""
    values = Quantise(INTO)(numbers(2, 8, 7, 7))
    expected = pool(values.float()).to(torch.uint8)

    assert torch.equal(QuantisedPool(pool)(values), expected)
