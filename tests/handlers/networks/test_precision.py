import pytest
import torch
from torch import nn

from modelserver_handlers.networks import precision


def test_weights_are_converted_and_statistics_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("count", torch.tensor(3))
    types = {name: tensor.dtype for name, tensor in precision.convert(model).state_dict().items()}

    assert types["0.weight"] == types["0.bias"] == torch.bfloat16
    assert types["1.weight"] == types["1.running_var"] == torch.float32
    assert types["count"] == torch.int64


def test_floats_alone_are_cast_wherever_they_are():
    numbers = torch.tensor([1, 2])

    assert precision.half(numbers) is numbers
    assert precision.full("text") == "text"
    assert (precision.half(torch.zeros(1)).dtype, precision.full(torch.zeros(1).bfloat16()).dtype) == (
        torch.bfloat16,
        torch.float32,
    )

    def forward(rows, masks, *, scale):
        assert rows.dtype == masks[0].dtype == scale.dtype == torch.bfloat16
        return {"answers": rows * scale}

    answers = precision.in_bf16(forward)(torch.ones(2), [torch.ones(1)], scale=torch.tensor(2.0))

    assert answers["answers"].dtype == torch.float32
    assert answers["answers"].tolist() == [2.0, 2.0]


def test_gradients_are_float32():
    model = precision.use_bf16(nn.Linear(3, 2).eval())
    point = torch.ones(1, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(point).sum(), point)

    assert gradient.dtype == torch.float32


@pytest.mark.parametrize(
    ("tf32", "capability", "used"),
    [
        (None, (9, 0), "tf32"),
        (True, (8, 0), "tf32"),
        (False, (9, 0), "fp32"),
        (None, (7, 5), "fp32"),
        (True, (7, 5), "fp32"),
    ],
)
def test_float32_is_rounded_to_tf32_on_a_gpu(tf32, capability, used, gpus):
    gpus.capability = capability

    assert precision.choose_float32(torch.device("cuda"), tf32)[0] == used
    assert torch.get_float32_matmul_precision() == ("high" if used == "tf32" else "highest")
    assert torch.backends.cudnn.allow_tf32 is (used == "tf32")


def test_float32_stays_on_a_processor():
    before = torch.get_float32_matmul_precision()

    assert precision.choose_float32(torch.device("cpu"), True)[0] == "fp32"
    assert torch.get_float32_matmul_precision() == before


def test_only_networks_are_eager():
    network = nn.Linear(2, 2)

    assert precision.is_eager(network)
    assert not precision.is_eager(torch.compile(network, backend="eager"))
    assert not precision.is_eager(torch.fx.symbolic_trace(network))
