import pytest
import torch
from tests.handlers.networks.digits import Residual, trained
from torch import nn

from modelserver_handlers.networks.optimize import optimize

SHAPE = (3, 32, 32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.eval()

    def forward(self, rows):
        return torch.relu(self.norm(self.conv(rows))).mean((2, 3))


class Block(nn.Module):
    """A residual block, with any activation and with or without a norm."""

    def __init__(self, activation=None):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.activation = activation or nn.ReLU()
        self.last = nn.Linear(16, 7)

    def forward(self, rows):
        values = self.activation(self.norm(self.first(rows)))
        values = self.activation(self.second(values) + values)
        return self.last(values.mean((2, 3)))


def settled(model):
    """With seeded weights and norms that have seen something, in evaluation mode."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(16, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(16, generator=generator))
    return model.eval()


def rows(count=5, shape=SHAPE):
    """Seeded inputs, others than the probe's."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(9))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


@pytest.fixture(scope="session")
def reader():
    return trained(Residual())


def refused(model, caplog, shape=SHAPE):
    """The reason for which a network is left alone; it is not touched."""
    caplog.set_level("INFO")
    before = getattr(model, "forward", None)
    assert not optimize(model, shape)
    assert getattr(model, "forward", None) == before
    return caplog.messages[-1]


def outputs(model, inputs):
    with torch.inference_mode():
        return model(inputs)
