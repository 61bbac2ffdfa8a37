"""Networks made to be filled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modelserver_handlers.blank import make_blank


class Layer(nn.Module):
    """Draws its weights by nn.init."""

    drawn = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        before = torch.get_rng_state()
        nn.init.normal_(self.layer.weight, std=2)
        Layer.drawn += not torch.equal(before, torch.get_rng_state())


class WithTable(Layer):
    """Keeps a table that is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(3), persistent=False)


class WithList(Layer):
    """Keeps tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {"a": [torch.rand(3)]}


@pytest.mark.parametrize(("network", "drawn"), [(Layer, 0), (WithTable, 1), (WithList, 1)])
def test_nothing_is_drawn_that_is_replaced(network: type[Layer], drawn: int) -> None:
    """Random weights are left out, unless the network holds tensors that no state dict brings."""
    Layer.drawn = 0
    model = make_blank(network)

    assert isinstance(model, network)
    assert Layer.drawn == drawn


def test_a_seeded_table_is_what_it_always_was() -> None:
    """Numbers that a network draws for itself are not moved by those that were left out."""

    def make() -> nn.Module:
        torch.manual_seed(4)
        return WithTable()

    assert torch.equal(make_blank(make).get_buffer("table"), make().get_buffer("table"))


def test_initialising_works_afterwards() -> None:
    """The functions of torch.nn.init are back, also after an error."""

    def fail() -> nn.Module:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_blank(fail)

    assert nn.init.ones_(torch.zeros(2)).tolist() == [1, 1]
