import copy
from pathlib import Path

import pytest
import torch
from tests.handlers.networks.conftest import SHAPE, Block, outputs, rows, settled
from tests.handlers.processor import HAS_BF16, needs_bf16
from torch import nn

from modelserver_handlers.networks import prepared
from modelserver_handlers.networks.fusion import Geometry
from modelserver_handlers.networks.optimize import deviation, optimize

GEOMETRY = Geometry([1, 1], [2, 1], [1, 1], 2)


@pytest.mark.skipif(not prepared.can_share(), reason="this torch cannot make packed weights of bytes")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)])
def test_bytes_make_the_same_weight(dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 8, 3, 3, generator=generator).to(dtype)
    rows = torch.randn(2, 16, 9, 9, generator=generator).to(dtype)
    original = prepared.pack(weight, GEOMETRY, rows.shape)
    parts = prepared.to_bytes(original)
    made = prepared.from_bytes(parts)

    def convolve(with_weight):
        return torch.ops.mkldnn._convolution_pointwise(rows, with_weight, None, *GEOMETRY, "none", [], "")

    assert torch.ops.mkldnn.data_ptr(made) == parts["content"].data_ptr()
    assert torch.equal(convolve(made), convolve(original))
    assert torch.allclose(convolve(made), convolve(weight), rtol=1e-2, atol=1e-2)


def test_another_torch_shares_nothing(monkeypatch):
    monkeypatch.setattr(prepared, "_library", object)
    prepared.can_share.cache_clear()
    try:
        assert prepared.can_share() is False
    finally:
        prepared.can_share.cache_clear()


def test_weights_come_from_the_cache(folder, monkeypatch):
    first, second = settled(Block()), settled(Block())
    second.load_state_dict(first.state_dict())
    optimize(first, SHAPE)
    (file,) = folder.glob("*.pt")
    monkeypatch.setattr(prepared.FusedPlan, "make", None)

    assert optimize(second, SHAPE)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert torch.equal(outputs(first, rows()), outputs(second, rows()))


def test_other_weights_are_not_taken_from_the_cache(folder):
    block = settled(Block())
    for precision, size in (("fp32", 8), ("bf16", 8), ("fp32", 1), ("fp32", 5)):
        optimize(copy.deepcopy(block), SHAPE, precision, size)
    changed = copy.deepcopy(block)
    changed.last.bias.data[0] += 1e-6
    optimize(changed, SHAPE)
    other = settled(Block(nn.SiLU()))
    other.load_state_dict(block.state_dict())
    optimize(other, SHAPE)

    assert len(list(folder.glob("*.pt"))) == (5 if HAS_BF16 else 4)


def test_a_broken_file_is_made_anew(folder):
    block = settled(Block())
    optimize(copy.deepcopy(block), SHAPE)
    (file,) = folder.glob("*.pt")
    size = file.stat().st_size
    file.write_bytes(b"nothing")
    fast = copy.deepcopy(block)

    assert optimize(fast, SHAPE)
    assert file.stat().st_size == size
    assert deviation(outputs(fast, rows()), outputs(block, rows())) < 1e-4


@pytest.mark.parametrize("without", ["cache", "sharing"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bf16)])
def test_weights_are_made_without_a_cache(without, precision, monkeypatch):
    if without == "cache":
        monkeypatch.setenv("MODELSERVER_CACHE", "off")
    else:
        monkeypatch.setattr(prepared, "can_share", lambda: False)
    plain = settled(Block())
    fast = copy.deepcopy(plain)

    assert optimize(fast, SHAPE, precision)
    assert deviation(outputs(fast, rows()), outputs(plain, rows())) < (1e-4 if precision == "fp32" else 0.05)
