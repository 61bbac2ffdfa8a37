"""Weights in oneDNN's own layout."""

from __future__ import annotations

import pytest
import torch
from tests.handlers.processor import needs_bf16

from modelserver_handlers.networks import packed
from modelserver_handlers.networks.fusion import Geometry

GEOMETRY = Geometry((1, 1), (2, 1), (1, 1), 2)


@pytest.mark.skipif(not packed.can_share(), reason="this torch cannot make packed weights of bytes")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)])
def test_bytes_make_the_same_weight(dtype: torch.dtype) -> None:
    """A weight made of another one's bytes lies in them, and convolutions with it give the same bits."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 8, 3, 3, generator=generator).to(dtype)
    rows = torch.randn(2, 16, 9, 9, generator=generator).to(dtype)
    original = packed.pack(weight, GEOMETRY, rows.shape)
    parts = packed.to_bytes(original)
    made = packed.from_bytes(parts)

    def convolve(with_weight: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            rows, with_weight, None, *GEOMETRY.arguments(), "none", [], ""
        )
        return answers

    assert torch.ops.mkldnn.data_ptr(made) == parts["content"].data_ptr()
    assert torch.equal(convolve(made), convolve(original))
    assert torch.allclose(convolve(made), convolve(weight), rtol=1e-2, atol=1e-2)


def test_another_torch_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the functions that it takes, packed weights are not shared, and nothing fails."""
    monkeypatch.setattr(packed, "_library", object)
    packed.can_share.cache_clear()
    try:
        assert packed.can_share() is False
    finally:
        packed.can_share.cache_clear()
