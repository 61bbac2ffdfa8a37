"""Integrated gradients."""

from __future__ import annotations

import torch

from modelserver_handlers.gradients import integrated_gradients


def test_linear_model_is_exact() -> None:
    """For a linear model the attribution is weight times input, for one target or one per row."""
    weight = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    rows = torch.tensor([[1.0, 1.0], [2.0, 5.0]])

    one = integrated_gradients(lambda x: x @ weight.T, rows, 1)
    each = integrated_gradients(lambda x: x @ weight.T, rows, [0, 1])

    assert torch.allclose(one, rows * weight[1])
    assert torch.allclose(each, rows * weight)


def test_attributions_add_up() -> None:
    """The attributions sum to the difference between the input's score and zero's."""
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.pow(3).sum(1), x.sin().prod(1)], dim=1)

    sums = integrated_gradients(model, rows, 0).sum(1)

    assert torch.allclose(sums, model(rows)[:, 0] - model(torch.zeros_like(rows))[:, 0], atol=1e-4)
