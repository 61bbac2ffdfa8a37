"""Integrated gradients."""

from __future__ import annotations

import pytest
import torch

from modelserver_handlers.networks.insights import chosen_outputs, integrated_gradients


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


@pytest.mark.parametrize("target", [2, -3, [0, 2]])
def test_classes_that_there_are_not(target: int | list[int]) -> None:
    """They are refused before they are looked up, which on a GPU would end the process."""
    with pytest.raises(IndexError, match="the classes are 0 to 1"):
        chosen_outputs(torch.zeros(2, 2), target)
