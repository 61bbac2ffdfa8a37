"""Networks in 8 bits that are as good, and those that are left alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.handlers.networks.conftest import Block, outputs, settled
from tests.handlers.networks.conftest import rows as pictures
from tests.handlers.networks.digits import Residual, accuracy, calibration_set, held_out
from tests.handlers.processor import needs_int8
from torch import nn

from modelserver_handlers.networks.int8 import quantisation
from modelserver_handlers.networks.int8.layers import QuantisedConvolution, has_dot_products
from modelserver_handlers.networks.int8.quantisation import Int8Forward, Int8Plan, NotInt8Error, quantise
from modelserver_handlers.networks.optimize import deviation

pytestmark = needs_int8


def in_int8(model: nn.Module, rows: torch.Tensor | None = None) -> nn.Module:
    """A copy that computes in 8 bits."""
    copied = copy.deepcopy(model)
    quantise(copied, calibration_set() if rows is None else rows, 8)
    return copied


def refused(model: Any, rows: torch.Tensor | None = None) -> str:
    """Why a network is left alone; it is not touched."""
    before = getattr(model, "forward", None)
    with pytest.raises(NotInt8Error) as caught:
        quantise(model, calibration_set() if rows is None else rows, 8)
    assert getattr(model, "forward", None) == before
    return str(caught.value)


def close(model: nn.Module, rows: torch.Tensor) -> bool:
    """Whether a network's outputs in 8 bits are its own to 10 % of the largest."""
    plain = copy.deepcopy(model)
    fast = in_int8(model, rows)
    return 0 < deviation(outputs(fast, rows), outputs(plain, rows)) < 0.1


# How good it is


def test_accuracy_stays_within_a_percent(reader: nn.Module) -> None:
    """Digits that the network never saw are read as well as before, within 1 %."""
    assert accuracy(reader, held_out()) > 0.9
    assert abs(accuracy(in_int8(reader), held_out()) - accuracy(reader, held_out())) < 0.01


@pytest.mark.parametrize("size", [1, 8, 20])
def test_rows_do_not_depend_on_their_batch(reader: nn.Module, size: int) -> None:
    """Each row is answered as it is alone, in batches of any size."""
    fast = in_int8(reader)
    rows = held_out().pictures[:size]
    alone = torch.cat([outputs(fast, row[None]) for row in rows])

    assert deviation(outputs(fast, rows), alone) < 1e-5
    assert deviation(alone, outputs(reader, rows)) < 0.1


def test_one_line_of_the_log_has_the_agreement(reader: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    """One line of the log tells agreement, the largest difference, and 7 bits where there are no more."""
    caplog.set_level("INFO")
    words = quantise(copy.deepcopy(reader), calibration_set(), 8)
    (line,) = (message for message in caplog.messages if "int8" in message)

    assert words in line
    assert "the first class agrees for" in words
    assert "of the 100 rows of the calibration set, the largest difference is" in words
    assert ("activations have 7 bits" in words) is not has_dot_products()


# Graphs


class Stored(nn.Module):
    """A sum whose terms are used afterwards, and a value that both 8-bit layers and others use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 1)
        self.classes = nn.Linear(24, 5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x 1 x any x any to rows x 5."""
        result = torch.relu(self.first(rows))
        summed = torch.relu(self.second(result) + result)
        parts = (result, summed, torch.tanh(self.third(summed)))
        answers: torch.Tensor = self.classes(torch.cat([part.mean((2, 3)) for part in parts], 1))
        return answers


class Chain(nn.Module):
    """Sums whose second term is not used afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.fourth = nn.Conv2d(8, 8, 3, padding=1)
        self.fifth = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x 1 x any x any to rows x 8."""
        result = self.first(rows)
        result = torch.relu(self.third(self.second(result)) + result)
        result = self.fifth(self.fourth(result)) + result
        return result.mean((2, 3))


class Words(nn.Module):
    """Linear layers on rows of several vectors, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x any x any x 8 to rows x 3."""
        vectors = rows.flatten(1, 2)
        return self.outer(torch.relu(self.inner(self.inner(vectors)))).mean(1)  # type: ignore[no-any-return]


class Several(nn.Module):
    """Outputs in a dict and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 6, 3)

    def forward(self, rows: torch.Tensor) -> Any:
        """Scores of pixels, and more."""
        result = self.layer(rows)
        return {"out": result, "more": (torch.relu(result).sum((2, 3)), 3)}


class Double(nn.Module):
    """A convolution, and a linear layer in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 6, 3)
        self.precise = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x 1 x any x any to rows x 4."""
        answers: torch.Tensor = self.precise(self.layer(rows).mean((2, 3)).double()).float()
        return answers


class Opaque(nn.Module):
    """Does what its input says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Cannot be traced."""
        return self.layer(rows) if rows.sum() > 0 else -self.layer(rows)  # type: ignore[no-any-return]


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights have no sensible classes."""
    monkeypatch.setattr(quantisation, "AGREEMENT", 0.0)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(("network", "written"), [(Stored, [False]), (Chain, [True, True])])
def test_sums_are_written_in_place_where_allowed(network: type[nn.Module], written: list[bool]) -> None:
    """A sum is written over its second term only where nothing uses that afterwards."""
    torch.manual_seed(0)
    model = network().eval()
    rows = calibration_set()[:16]
    forward = in_int8(model, rows).forward
    assert isinstance(forward, Int8Forward)
    layers = [each for each in forward._graph.modules() if isinstance(each, QuantisedConvolution)]

    assert [each._in_place for each in layers if each.other is not None] == written
    assert close(model, rows)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("network", [Words, Double])
def test_unusual_layers_keep_their_numbers(network: type[nn.Module]) -> None:
    """Layers used twice, or on several vectors of a row; those of other types stay as they are."""
    torch.manual_seed(0)

    assert close(network().eval(), calibration_set()[:16])


@pytest.mark.usefixtures("lenient")
def test_a_block_with_groups_keeps_its_numbers() -> None:
    """A sum after a convolution with groups is done apart from it."""
    assert close(settled(Block()), pictures(16))


def test_outputs_keep_their_form() -> None:
    """Outputs keep their form, and every pixel's class counts."""
    torch.manual_seed(0)
    model = Several().eval()
    rows = calibration_set()
    plain, result = outputs(model, rows), outputs(in_int8(model, rows), rows)

    assert result["more"][1] == 3
    assert result["out"].is_contiguous()
    assert deviation(result, plain) < 0.05


# What stays the network's own


def test_gradients_and_other_inputs_get_the_own_forward(reader: nn.Module) -> None:
    """With gradients, float64 or a training network, the network's own forward runs."""
    fast = in_int8(reader)
    rows = held_out().pictures[:2]
    with torch.no_grad():
        assert not torch.equal(fast(rows), reader(rows))
    expected = rows.clone().requires_grad_()
    fast(expected).sum().backward()

    assert torch.equal(fast(rows), reader(rows))
    assert expected.grad is not None
    fast.stem[0].register_forward_hook(lambda *_: None)  # type: ignore[index, union-attr]
    assert torch.equal(outputs(fast, rows), outputs(reader, rows))


def test_inputs_of_a_wrong_shape_get_the_own_error(reader: nn.Module) -> None:
    """Clients are told what the network says, not what its layers in 8 bits do."""
    fast = in_int8(reader)
    with pytest.raises(RuntimeError) as own:
        outputs(reader, torch.zeros(2, 3, 8, 8))
    with pytest.raises(RuntimeError) as caught:
        outputs(fast, torch.zeros(2, 3, 8, 8))

    assert str(caught.value) == str(own.value)
    assert caught.value.__context__ is None


def test_a_failed_batch_is_computed_by_the_own_layers(
    reader: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is computed by the network's own layers, and the log says so."""
    fast = in_int8(reader)
    rows = held_out().pictures[:2]

    def fail(_rows: torch.Tensor) -> None:
        raise RuntimeError("no primitive")

    monkeypatch.setattr(fast.forward, "_graph", fail)

    assert torch.equal(outputs(fast, rows), outputs(reader, rows))
    assert caplog.messages == ["A batch of (2, 1, 8, 8) was not computed in int8: no primitive"]


# Refusals


def test_disagreeing_networks_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Where classes disagree it is refused, and the layer that costs most is named as in the network."""
    torch.manual_seed(3)
    model = Residual().eval()
    with torch.no_grad():
        model.outer[0].weight[0] *= 1e4
        model.classes.bias.copy_(model(calibration_set()).mean(0).neg())
    reason = refused(model)

    assert "the first class agrees for" in reason
    assert reason.split("most of it is lost in ")[1].split(",")[0] in dict(model.named_modules())
    assert not caplog.messages


def test_a_refusal_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workers read it in the cache."""
    torch.manual_seed(3)
    monkeypatch.setattr(quantisation, "AGREEMENT", 1.1)
    model = Residual().eval()
    reason = refused(copy.deepcopy(model))
    monkeypatch.setattr(Int8Plan, "make", None)

    assert refused(model) == reason


def test_other_networks_are_left_alone(reader: nn.Module) -> None:
    """Hooks, training mode and exported programs are the author's; so is what cannot be traced, or has no
    such layers.
    """
    hooked, training = copy.deepcopy(reader), copy.deepcopy(reader).train()
    hooked.register_forward_hook(lambda *_: None)

    assert refused(hooked) == "it has hooks"
    assert "training mode" in refused(training)
    assert "not an eager network" in refused(torch.fx.symbolic_trace(reader))
    assert refused(Opaque().eval()) == "it cannot be traced"
    assert "no convolution or linear layer" in refused(nn.Sequential(nn.ReLU(), nn.Flatten()).eval())


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (torch.zeros(0, 1, 8, 8), "no rows of float32"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.int64), "no rows of float32"),
        (torch.full((4, 1, 8, 8), float("nan")), "quantising it failed"),
        (torch.zeros(4, 7, 8, 8), "quantising it failed"),
    ],
)
def test_bad_calibration_sets_are_refused(reader: nn.Module, rows: torch.Tensor, reason: str) -> None:
    """Rows that the network cannot take say why."""
    assert reason in refused(copy.deepcopy(reader), rows)


# The cache


def test_weights_come_from_the_cache(
    reader: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second worker maps what the first one made, and computes the same."""
    first = in_int8(reader)
    (file,) = folder.glob("*.pt")
    monkeypatch.setattr(Int8Plan, "make", None)
    second = in_int8(reader)

    assert str(file) in Path("/proc/self/maps").read_text()
    assert torch.equal(outputs(first, held_out().pictures), outputs(second, held_out().pictures))


def test_another_set_means_another_file(reader: nn.Module, folder: Path) -> None:
    """Scales depend on the calibration set; whether batches are large hardly matters."""
    for rows, typical in ((calibration_set(), 8), (calibration_set(), 4), (calibration_set()[1:], 8)):
        quantise(copy.deepcopy(reader), rows, typical)

    assert len(list(folder.glob("*.pt"))) == 2
