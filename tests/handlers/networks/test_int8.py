"""Networks that compute in 8 bits: layers, their scales, and whether the answers stay as good."""

import copy
import io
import json
from pathlib import Path
from unittest.mock import Mock

import numpy
import pytest
import torch
from PIL import Image
from tests.handlers.networks.conftest import Block, outputs, settled
from tests.handlers.networks.conftest import rows as pictures
from tests.handlers.networks.digits import Residual, accuracy, calibration_set, held_out
from tests.handlers.processor import needs_int8
from torch import nn

from modelserver_handlers.networks import int8
from modelserver_handlers.networks.fusion import NONE, RELU, SILU, FusedConvolution, Geometry
from modelserver_handlers.networks.optimize import deviation

INTO = int8.Scale.of(-3.0, 3.0)


@pytest.fixture
def _fresh_top():
    int8.top.cache_clear()
    yield
    int8.top.cache_clear()


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    actual = torch.randn(*shape, generator=generator).clamp(-3, 3)
    return actual.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else actual


def steps_off(actual, expected, scale):
    return float((actual - expected).abs().max()) / scale.step


def plain_convolution(activation, groups=1, *, adds=False):
    """8 to 8 channels, 3 x 3, padded."""
    plain = FusedConvolution(Geometry([1, 1], [1, 1], [1, 1], groups), activation, adds)
    plain.put(numbers(8, 8 // groups, 3, 3, seed=1) / 10, numbers(8, seed=2))
    return plain


def quantised(plain, out, other=None):
    layer = int8.QuantisedConvolution(plain, INTO, out, other)
    weight = int8.Weight.of(plain.weight)
    layer.put(int8.pack_convolution(weight, plain.geometry, INTO, [2, 8, 5, 5]), weight.steps, plain.bias)
    return layer


def as_expected(layer, expected, *inputs):
    with torch.inference_mode():
        error = float((layer.in_floats(*inputs) - expected).abs().max())
    own_rounding = 0.0 if layer.out is None else layer.out.step / 2
    return error < own_rounding + 0.03 * float(expected.abs().max())


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-3.0, -1.0)])
def test_a_scale_holds_its_range_and_zero(low, high):
    scale = int8.Scale.of(low, high)
    values = torch.tensor([low, 0.0, high])
    actual = int8.Dequantise(scale)(int8.Quantise(scale)(values))

    assert 0 <= scale.zero <= int8.top()
    assert actual[1] == 0
    assert steps_off(actual, values, scale) <= 1.0


def test_values_of_a_scale_are_clamped_and_zeros_have_a_step():
    actual = int8.Quantise(int8.Scale.of(-1.0, 1.0))(100 * numbers(2, 3, 4, 4))

    assert (int(actual.min()), int(actual.max())) == (0, int8.top())
    assert actual.is_contiguous(memory_format=torch.channels_last)

    assert int8.Scale.of(0.0, 0.0) == int8.Scale(1.0, 0)


@pytest.mark.parametrize(("has_dot_products", "largest"), [(True, 255), (False, 127)])
@pytest.mark.usefixtures("_fresh_top")
def test_activations_have_7_bits_without_vnni(has_dot_products, largest, monkeypatch):
    """Without VNNI, sums of products in 16 bits leave room for 7."""
    monkeypatch.setattr(int8, "has_dot_products", lambda: has_dot_products)
    assert int8.top() == largest


@pytest.mark.parametrize(("capability", "able"), [("DEFAULT", False), ("AVX2", True), ("AVX512", True)])
def test_processors_need_avx2(capability, able, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert int8.is_able() is able


def test_weights_have_a_scale_for_each_output():
    rows = torch.stack([numbers(16) * 1000, numbers(16) / 1000, torch.zeros(16)])
    weight = int8.Weight.of(rows)

    assert weight.values.dtype == torch.int8
    assert ((weight.values * weight.steps[:, None] - rows).abs() <= weight.steps[:, None] * 0.51).all()


@needs_int8
@pytest.mark.parametrize("activation", [NONE, RELU, ("hardtanh", (0.0, 6.0)), SILU, ("hardswish", ())])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("out", [None, int8.Scale.of(-6.0, 6.0)])
def test_convolutions_match_their_plain_ones(activation, groups, out):
    plain = plain_convolution(activation, groups)
    rows = numbers(2, 8, 5, 5)

    assert as_expected(quantised(plain, out), plain(rows), rows)


@needs_int8
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_second_term_is_added(activation, in_place):
    plain = plain_convolution(activation, adds=True)
    rows, other = numbers(2, 8, 5, 5), numbers(2, 8, 5, 5, seed=5)
    expected = plain(rows, other)
    if in_place:
        plain.in_place = True
    scale = int8.Scale.of(-9.0, 9.0)
    layer = quantised(plain, scale, INTO)
    with torch.inference_mode():
        term = int8.Quantise(INTO)(other)
        before = term.clone()
        actual = layer(int8.Quantise(INTO)(rows), term)

    assert torch.equal(term, actual if in_place else before)
    assert steps_off(int8.Dequantise(scale)(actual), expected, scale) < 2.5
    # In any layout, too.
    assert as_expected(layer, expected, rows, other.contiguous())


@needs_int8
@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16), (2, 3, 4, 16)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_layers_match_their_plain_ones(shape, biased):
    plain = nn.Linear(16, 6, bias=biased).requires_grad_(False)
    plain.weight.copy_(numbers(6, 16, seed=4))
    weight = int8.Weight.of(plain.weight)
    layer = int8.QuantisedLinear(INTO, None)
    layer.put(int8.pack_linear(weight), weight.steps, plain.bias)
    rows = numbers(*shape)

    assert as_expected(layer, plain(rows), rows)


@needs_int8
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 1), ceil_mode=True)]
)
def test_pools_match_their_plain_ones(pool):
    values = int8.Quantise(INTO)(numbers(2, 8, 7, 7))
    expected = pool(values.float()).to(torch.uint8)

    assert torch.equal(int8.QuantisedPool(pool)(values), expected)


def in_int8(model, rows=None):
    copied = copy.deepcopy(model)
    int8.quantise(copied, calibration_set() if rows is None else rows, 8)
    return copied


def refused(model, rows=None):
    """Why a network is left alone; it is not touched."""
    before = getattr(model, "forward", None)
    with pytest.raises(int8.NotInt8Error) as caught:
        int8.quantise(model, calibration_set() if rows is None else rows, 8)
    assert getattr(model, "forward", None) == before
    return str(caught.value)


def close(model, rows):
    """Whether a network's outputs in 8 bits are its own to 10 % of the largest."""
    plain = copy.deepcopy(model)
    fast = in_int8(model, rows)
    return 0 < deviation(outputs(fast, rows), outputs(plain, rows)) < 0.1


@needs_int8
def test_accuracy_stays_within_a_percent(reader):
    assert accuracy(reader, held_out()) > 0.9
    assert abs(accuracy(in_int8(reader), held_out()) - accuracy(reader, held_out())) < 0.01


@needs_int8
@pytest.mark.parametrize("size", [1, 8, 20])
def test_rows_do_not_depend_on_their_batch(reader, size):
    fast = in_int8(reader)
    rows = held_out().pictures[:size]
    alone = torch.cat([outputs(fast, row[None]) for row in rows])

    assert deviation(outputs(fast, rows), alone) < 1e-5
    assert deviation(alone, outputs(reader, rows)) < 0.1


@needs_int8
def test_one_line_of_the_log_has_the_agreement(reader, caplog):
    caplog.set_level("INFO")
    words = int8.quantise(copy.deepcopy(reader), calibration_set(), 8)
    (line,) = (message for message in caplog.messages if "int8" in message)

    assert words in line
    assert "the first class agrees for" in words
    assert "of the 100 rows of the calibration set, the largest difference is" in words
    assert ("activations have 7 bits" in words) is not int8.has_dot_products()


class Stored(nn.Module):
    """A sum whose terms are used afterwards, and a value that both 8-bit layers and others use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 1)
        self.classes = nn.Linear(24, 5)

    def forward(self, rows):
        result = torch.relu(self.first(rows))
        summed = torch.relu(self.second(result) + result)
        parts = (result, summed, torch.tanh(self.third(summed)))
        return self.classes(torch.cat([part.mean((2, 3)) for part in parts], 1))


class Chain(nn.Module):
    """Sums whose second term is not used afterwards."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.fourth = nn.Conv2d(8, 8, 3, padding=1)
        self.fifth = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, rows):
        result = self.first(rows)
        result = torch.relu(self.third(self.second(result)) + result)
        result = self.fifth(self.fourth(result)) + result
        return result.mean((2, 3))


class Words(nn.Module):
    """Linear layers on rows of several vectors, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 3)

    def forward(self, rows):
        vectors = rows.flatten(1, 2)
        return self.outer(torch.relu(self.inner(self.inner(vectors)))).mean(1)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 6, 3)

    def forward(self, rows):
        result = self.layer(rows)
        return {"out": result, "more": (torch.relu(result).sum((2, 3)), 3)}


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 6, 3)
        self.precise = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, rows):
        return self.precise(self.layer(rows).mean((2, 3)).double()).float()


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, rows):
        return self.layer(rows) if rows.sum() > 0 else -self.layer(rows)


@pytest.fixture
def lenient(monkeypatch):
    """Random weights have no sensible classes."""
    monkeypatch.setattr(int8, "AGREEMENT", 0.0)


@needs_int8
@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(("network", "written"), [(Stored, [False]), (Chain, [True, True])])
def test_sums_are_written_in_place_where_allowed(network, written):
    torch.manual_seed(0)
    model = network().eval()
    rows = calibration_set()[:16]
    forward = in_int8(model, rows).forward
    assert isinstance(forward, int8.Int8Forward)
    layers = [each for each in forward._graph.modules() if isinstance(each, int8.QuantisedConvolution)]

    assert [each._in_place for each in layers if each.other is not None] == written
    assert close(model, rows)


@needs_int8
@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("network", [Words, Double])
def test_unusual_layers_keep_their_numbers(network):
    torch.manual_seed(0)

    assert close(network().eval(), calibration_set()[:16])
    assert network is Double or close(settled(Block()), pictures(16))


@needs_int8
def test_outputs_keep_their_form():
    torch.manual_seed(0)
    model = Several().eval()
    rows = calibration_set()
    plain, result = outputs(model, rows), outputs(in_int8(model, rows), rows)

    assert result["more"][1] == 3
    assert result["out"].is_contiguous()
    assert deviation(result, plain) < 0.05


@needs_int8
def test_gradients_and_other_inputs_get_the_own_forward(reader):
    fast = in_int8(reader)
    rows = held_out().pictures[:2]
    with torch.no_grad():
        assert not torch.equal(fast(rows), reader(rows))
    expected = rows.clone().requires_grad_()
    fast(expected).sum().backward()

    assert torch.equal(fast(rows), reader(rows))
    assert expected.grad is not None
    fast.stem[0].register_forward_hook(lambda *_: None)
    assert torch.equal(outputs(fast, rows), outputs(reader, rows))


@needs_int8
def test_inputs_of_a_wrong_shape_get_the_own_error(reader):
    fast = in_int8(reader)
    with pytest.raises(RuntimeError) as own:
        outputs(reader, torch.zeros(2, 3, 8, 8))
    with pytest.raises(RuntimeError) as caught:
        outputs(fast, torch.zeros(2, 3, 8, 8))

    assert str(caught.value) == str(own.value)
    assert caught.value.__context__ is None


@needs_int8
def test_a_failed_batch_is_computed_by_the_own_layers(reader, monkeypatch, caplog):
    fast = in_int8(reader)
    rows = held_out().pictures[:2]

    monkeypatch.setattr(fast.forward, "_graph", Mock(side_effect=RuntimeError("no primitive")))

    assert torch.equal(outputs(fast, rows), outputs(reader, rows))
    assert caplog.messages == ["A batch of (2, 1, 8, 8) was not computed in int8: no primitive"]


@needs_int8
def test_disagreeing_networks_are_refused(caplog):
    torch.manual_seed(3)
    model = Residual().eval()
    with torch.no_grad():
        model.outer[0].weight[0] *= 1e4
        model.classes.bias.copy_(model(calibration_set()).mean(0).neg())
    reason = refused(model)

    assert "the first class agrees for" in reason
    assert reason.split("most of it is lost in ")[1].split(",")[0] in dict(model.named_modules())
    assert not caplog.messages


@needs_int8
def test_a_refusal_is_computed_once(monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setattr(int8, "AGREEMENT", 1.1)
    model = Residual().eval()
    reason = refused(copy.deepcopy(model))
    monkeypatch.setattr(int8.Int8Plan, "make", None)

    assert refused(model) == reason


@needs_int8
def test_other_networks_are_left_alone(reader):
    hooked, training = copy.deepcopy(reader), copy.deepcopy(reader).train()
    hooked.register_forward_hook(lambda *_: None)

    assert refused(hooked) == "it has hooks"
    assert "training mode" in refused(training)
    assert "not an eager network" in refused(torch.fx.symbolic_trace(reader))
    assert refused(Opaque().eval()) == "it cannot be traced"
    assert "no convolution or linear layer" in refused(nn.Sequential(nn.ReLU(), nn.Flatten()).eval())


@needs_int8
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (torch.zeros(0, 1, 8, 8), "no rows of float32"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.int64), "no rows of float32"),
        (torch.full((4, 1, 8, 8), float("nan")), "quantising it failed"),
        (torch.zeros(4, 7, 8, 8), "quantising it failed"),
    ],
)
def test_bad_calibration_sets_are_refused(reader, rows, reason):
    assert reason in refused(copy.deepcopy(reader), rows)


@needs_int8
def test_weights_come_from_the_cache(reader, folder, monkeypatch):
    first = in_int8(reader)
    (file,) = folder.glob("*.pt")
    monkeypatch.setattr(int8.Int8Plan, "make", None)
    second = in_int8(reader)

    assert str(file) in Path("/proc/self/maps").read_text()
    assert torch.equal(outputs(first, held_out().pictures), outputs(second, held_out().pictures))


@needs_int8
def test_another_set_means_another_file(reader, folder):
    """Scales depend on the calibration set; whether batches are large hardly matters."""
    for rows, typical in ((calibration_set(), 8), (calibration_set(), 4), (calibration_set()[1:], 8)):
        int8.quantise(copy.deepcopy(reader), rows, typical)

    assert len(list(folder.glob("*.pt"))) == 2


def prepare(rows):
    """Numbers as they are, pictures as pixels: as preprocess does for a client's request."""
    (row,) = rows
    data = row["data"]
    if isinstance(data, bytes):
        data = numpy.asarray(Image.open(io.BytesIO(data)))
    return torch.tensor(numpy.asarray(data), dtype=torch.float32)[None]


def picture(shade, side=4):
    file = io.BytesIO()
    Image.new("L", (side, side), shade).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def archive(tmp_path):
    """With three pictures in ``samples``, not made in the order of their names."""
    samples = tmp_path / "archive" / "samples"
    samples.mkdir(parents=True)
    for shade in (2, 0, 1):
        (samples / f"{shade}.png").write_bytes(picture(shade))
    return samples.parent


def why_not(archive, name):
    with pytest.raises(int8.NotInt8Error) as caught:
        int8.calibration_rows(archive, name, prepare)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "shades"),
    [("samples", [0, 1, 2]), ("samples/", [0, 1, 2]), ("samples/*.png", [0, 1, 2]), ("samples/1.png", [1])],
)
def test_files_are_prepared_like_requests(archive, name, shades):
    rows = int8.calibration_rows(archive, name, prepare)

    assert rows.shape == (len(shades), 4, 4)
    assert rows[:, 0, 0].tolist() == shades


def test_a_broken_picture_is_left_out(archive, caplog):
    (archive / "samples" / "0.png").write_bytes(picture(0)[:40])
    (archive / "samples" / "more").mkdir()

    assert len(int8.calibration_rows(archive, "samples", prepare)) == 2
    assert caplog.messages[0].startswith("Left out of the calibration set: 0.png: ")


def test_rows_of_arrays_are_inputs_and_elements_of_json_prepared(archive):
    numpy.save(archive / "rows.npy", numpy.arange(6.0).reshape(2, 3))
    (archive / "rows.json").write_text(json.dumps([[1, 2], [3, 4]]))
    rows = int8.calibration_rows(archive, "rows.npy", prepare)

    assert (rows.dtype, rows.tolist()) == (torch.float32, [[0, 1, 2], [3, 4, 5]])
    assert int8.calibration_rows(archive, "rows.json", prepare).tolist() == [[1, 2], [3, 4]]


def test_rows_beyond_the_limit_are_left_out(archive):
    numpy.save(archive / "a.npy", numpy.zeros((int8.MOST_ROWS - 1, 2)))
    numpy.save(archive / "b.npy", numpy.ones((1_000, 2)))
    rows = int8.calibration_rows(archive, "*.npy", prepare)

    assert len(rows) == int8.MOST_ROWS
    assert rows[-1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(
            (name, "the archive has no calibration set '{}', or it is empty")
            for name in ("absent", "no*", "empty")
        ),
        *(
            (name, "the calibration set '{}' must be in the archive")
            for name in ("..", "../secret.npy", "samples/../../secret.npy", "/etc")
        ),
        *((name, "calibration set 'a") for name in ("a\0b", "a**b", "a" * 300)),
    ],
)
def test_sets_that_there_are_not_are_named(archive, name, reason):
    """Names that lead out of the archive are errors too: no other file of the machine is read."""
    (archive / "empty").mkdir()
    numpy.save(archive.parent / "secret.npy", numpy.zeros((2, 3)))

    assert reason.format(name) in why_not(archive, name)


@pytest.mark.parametrize("content", [b"", b"{}", b"[[1], [", b'[["a"]]', b"[]"])
def test_broken_files_are_refused(archive, content):
    (archive / "rows.json").write_bytes(content)
    assert why_not(archive, "rows.json") == "the calibration set 'rows.json' has no file that can be read"


def test_sets_without_rows_of_one_shape_are_refused(archive):
    """Files of a set run no code."""
    for made in (torch.empty(0), [1, 2]):
        with pytest.raises(int8.NotInt8Error, match="no file that can be read"):
            int8.calibration_rows(archive, "samples", lambda _rows, made=made: made)
    numpy.save(archive / "rows.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "no file that can be read" in why_not(archive, "rows.npy")
    (archive / "samples" / "3.png").write_bytes(picture(0, side=5))
    assert "different shapes: [(4, 4), (5, 5)]" in why_not(archive, "samples")
