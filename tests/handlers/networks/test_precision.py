"""bfloat16 within, float32 without."""

from __future__ import annotations

import torch
from torch import nn

from modelserver_handlers.networks.precision import convert, full, half, in_bf16, is_eager, use_bf16


def test_weights_are_converted_and_statistics_kept() -> None:
    """Batch norms keep their numbers; whole ones stay whole."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("count", torch.tensor(3))
    types = {name: tensor.dtype for name, tensor in convert(model).state_dict().items()}

    assert types["0.weight"] == types["0.bias"] == torch.bfloat16
    assert types["1.weight"] == types["1.running_var"] == torch.float32
    assert types["count"] == torch.int64


def test_only_floats_are_cast() -> None:
    """Token numbers and texts go through as they are."""
    numbers = torch.tensor([1, 2])

    assert half(numbers) is numbers
    assert full("text") == "text"
    assert (half(torch.zeros(1)).dtype, full(torch.zeros(1).bfloat16()).dtype) == (
        torch.bfloat16,
        torch.float32,
    )


def test_nested_inputs_and_outputs() -> None:
    """Tensors in lists, mappings and keyword arguments are cast, and what comes back too."""

    def forward(
        rows: torch.Tensor, masks: list[torch.Tensor], *, scale: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert rows.dtype == masks[0].dtype == scale.dtype == torch.bfloat16
        return {"answers": rows * scale}

    answers = in_bf16(forward)(torch.ones(2), [torch.ones(1)], scale=torch.tensor(2.0))

    assert answers["answers"].dtype == torch.float32
    assert answers["answers"].tolist() == [2.0, 2.0]


def test_a_network_with_gradients() -> None:
    """Explanations work: gradients come back in float32."""
    model = use_bf16(nn.Linear(3, 2).eval())
    point = torch.ones(1, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(point).sum(), point)

    assert gradient.dtype == torch.float32


def test_what_is_eager() -> None:
    """A network, not what was made of one: its layers and their memory format are settled."""
    network = nn.Linear(2, 2)

    assert is_eager(network)
    assert not is_eager(torch.compile(network, backend="eager"))
    assert not is_eager(torch.fx.symbolic_trace(network))
