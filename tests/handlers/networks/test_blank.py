"""Networks made to be filled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelserver_handlers.networks.blank import make_blank


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


class Lenient(Layer):
    """Takes what it finds in a state dict."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, False, assign)


class OfItsOwn(nn.Linear):
    """A layer that takes nothing of a state dict."""

    def _load_from_state_dict(self, *_: Any) -> None:
        pass


class WithLayerOfItsOwn(Layer):
    """Holds such a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OfItsOwn(3, 2)


class Hooked(Layer):
    """Says that nothing is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(lambda _, keys: keys.missing_keys.clear())


@pytest.mark.parametrize(("network", "drawn"), [(Layer, 0), (WithTable, 1), (WithList, 1)])
def test_nothing_is_drawn_that_is_replaced(network: type[Layer], drawn: int) -> None:
    """Random weights are left out, unless the network holds tensors that no state dict brings."""
    Layer.drawn = 0
    model = make_blank(network)

    assert isinstance(model, network)
    assert Layer.drawn == drawn


@pytest.mark.parametrize("network", [Lenient, WithLayerOfItsOwn, Hooked])
def test_what_a_state_dict_may_leave_out_is_drawn(network: type[Layer]) -> None:
    """A network that loads its state in a way of its own has the weights it gives itself before that."""
    torch.manual_seed(1)
    model = make_blank(network)
    torch.manual_seed(1)

    assert all(map(torch.equal, model.parameters(), network().parameters()))


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
