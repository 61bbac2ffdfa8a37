from collections import Counter

import pytest
import torch
from tests.handlers.networks.conftest import SHAPE, Block, refused, settled
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from modelserver_handlers.networks.optimize import FastForward, optimize


class Deciding(Block):
    """Its way depends on its input's values: it cannot be traced."""

    def forward(self, rows):
        return super().forward(rows) if rows.sum() > 0 else -super().forward(rows)


class Chancy(Block):
    def forward(self, rows):
        return super().forward(rows) + torch.rand(())


def test_layers_are_joined():
    fast = settled(Block())
    optimize(fast, SHAPE)
    assert isinstance(fast.forward, FastForward)

    left = Counter(type(module).__name__ for module in fast.forward._graph.children())

    # The sum stays apart where a convolution has groups, and with it the activation behind it.
    assert left == {"FusedConvolution": 2, "Linear": 1, "ReLU": 1}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Deciding(), "no convolutions"),
        (Chancy(), "would differ"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect")), "no convolutions"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)), "no convolutions"),
        (nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3))), "no convolutions"),
        (lambda batch: batch, "not an eager network"),
    ],
)
def test_networks_that_cannot_be_joined_are_left_alone(model, reason, caplog):
    if isinstance(model, nn.Module):
        model.eval()

    assert reason in refused(model, caplog)
