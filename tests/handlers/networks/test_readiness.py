import copy
import shutil
import weakref
from unittest.mock import Mock

import pytest
import torch
from tests.handlers.networks.conftest import Net
from tests.handlers.networks.digits import Residual, calibration_set, held_out
from tests.handlers.processor import HAS_BF16, needs_int8
from tests.simulated_gpu import GIB, cuda_error
from torch import nn

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import NetworkOptions
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.networks import ahead, int8, readiness
from modelserver_handlers.networks.int8 import Int8Forward, NotInt8Error, is_able
from modelserver_handlers.networks.optimize import FastForward, deviation
from modelserver_handlers.networks.readiness import Batches, Calibration, make_ready

GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1]), (2, [2, 1]), (8, [8, 1, 4, 2]), (12, [12, 1, 8, 4, 2])]
)
def test_largest_and_smallest_sizes_come_first(batch_size, sizes):
    assert readiness.sizes(batch_size) == sizes


def test_what_takes_long_is_cut_short():
    seen = []

    assert readiness.warm_up(lambda rows: seen.append(len(rows)), (2,), 8, long=0.0)
    assert seen == [8, 1]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: device-side assert triggered", RuntimeError),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", RuntimeError),
        ("CUDA driver error: invalid device context", RuntimeError),
        ("CUDA error: no kernel image is available for execution on the device", ModelLoadError),
    ],
)
def test_errors_of_cuda_fail_the_load(message, kind):
    """The error is named; only one that comes again with certainty is of the permanent kind."""

    with pytest.raises(RuntimeError, match=f"batches of 4 failed on the GPU: .*{message}") as caught:
        readiness.warm_up(Mock(side_effect=cuda_error(message)), (2,), 4, GPU)

    assert type(caught.value) is kind


def test_every_size_is_computed_to_its_end_where_errors_are_noticed(gpus):
    """The time that warming up may take is that of the GPU's work, not of launching it."""
    assert readiness.warm_up(lambda _rows: None, (2,), 4, GPU, long=60.0)
    assert gpus.calls.count("synchronize") == 3

    with pytest.raises(RuntimeError, match=r"batches of 1 failed on the GPU: .*device-side assert"):
        readiness.warm_up(lambda rows: gpus.fail() if len(rows) == 1 else None, (2,), 4, GPU)


@pytest.mark.parametrize("message", ["no such rows", "\"slow_conv\" not implemented for 'CUDA'"])
def test_a_mistake_in_the_network_is_a_warning(message, caplog):
    assert not readiness.warm_up(Mock(side_effect=ValueError(message)), (2,), 4, GPU)
    assert caplog.messages == [f"Warming up with rows of (2,) failed: ValueError: {message}"]


class Activations:
    """What a network holds while it computes."""


def taking(gpus, row, held):
    """A network that needs ``row`` bytes for each row, and activations that ``held`` refers to."""

    def run(rows):
        assert all(activations() is None for activations in held)
        activations = Activations()
        held.append(weakref.ref(activations))
        with gpus.allocation(row * len(rows)):
            pass

    return run


@pytest.mark.usefixtures("collects_nothing")
def test_too_large_batches_are_reported(gpus):
    gpus.memory = 10 * GIB
    notes = []
    held = []

    assert readiness.warm_up(taking(gpus, GIB, held), (2,), 24, GPU, notes.append, long=60.0)
    (line,) = notes
    assert line.startswith("Batches of 24 do not fit into the GPU's memory, those of 8 do: OutOfMemoryError")
    assert len(held) == len(readiness.sizes(24))
    assert gpus.calls.count("empty_cache") == 2


def test_a_row_that_does_not_fit_fails_the_load(gpus):
    """The load fails, with torch's numbers; another process may have taken the memory for a while."""
    with pytest.raises(RuntimeError, match=r"batches of 1 failed .*Tried to allocate 90\.00 GiB") as caught:
        readiness.warm_up(taking(gpus, 90 * GIB, []), (2,), 4, GPU)

    assert not isinstance(caught.value, ModelLoadError)


CPU = torch.device("cpu")
COMPILE = {"pt2": {"compile": {"enable": True}}}
BATCHES = Batches(4, (3, 16, 16))


class Recording(nn.Module):
    def __init__(self):
        super().__init__()
        self.sizes = []
        self.eval()

    def forward(self, rows):
        self.sizes.append(len(rows))
        return rows


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))


def ready(model, config=None, batches=BATCHES):
    return make_ready(model, NetworkOptions.parse(config or {}), config or {}, batches, CPU)


def rows(count=3):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def is_optimised(model):
    return isinstance(model.forward, FastForward)


def test_off_is_the_plain_network():
    net, plain = Net(), Net()
    ready(net, {"handler": {"optimize": "off"}})

    assert not is_optimised(net)
    with torch.inference_mode():
        assert torch.equal(net(rows()), plain(rows()))


@pytest.mark.parametrize(("config", "sizes"), [({}, [4, 1, 2]), ({"warmup": False}, [])])
def test_networks_are_warmed_up_if_their_inputs_are_known(config, sizes):
    recording = Recording()
    ready(recording, config)

    assert recording.sizes == sizes

    unknown = Recording()
    ready(unknown, config, Batches(4, None))

    assert unknown.sizes == []
    assert not is_optimised(ready(Net(), {}, Batches(4, None)))


@pytest.mark.parametrize("optimize", ["auto", "off"])
def test_bf16_counts_however_optimised(optimize):
    net, plain = Net(), Net()
    ready(net, {"precision": "bf16", "optimize": optimize})
    with torch.inference_mode():
        answers = net(rows())

    assert is_optimised(net) is (optimize == "auto" and HAS_BF16)
    assert answers.dtype == torch.float32
    assert 1e-5 < deviation(answers, plain(rows()).detach()) < 0.05


def test_bf16_is_refused_for_a_program():
    program = torch.export.export(Net(), (rows(),)).module()

    with pytest.raises(ModelLoadError, match="precision: bf16 needs an eager network"):
        ready(program, {"precision": "bf16"})


def test_nothing_is_compiled_once_a_network_is_ready(monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    torch._dynamo.reset()
    net, plain = Net(), Net()
    compiled = ready(net, {"pt2": {"compile": {"enable": True, "backend": "eager"}}})
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compiled is not net
    for size in range(1, 6):
        inputs = rows(size)
        with torch.inference_mode():
            assert deviation(compiled(inputs), plain(inputs)) < 1e-4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("cpu", "C++ compiler"),
        ("cuda", "The model runs uncompiled: pt2 asks for code that needs a C compiler (gcc), for Triton"),
    ],
)
def test_networks_run_uncompiled_without_a_compiler(place, line, gpus, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    if place == "cpu":
        monkeypatch.setattr(readiness, "finds_compiler", lambda _device: False)
        monkeypatch.setattr(ahead, "finds_compiler", lambda: False)
    net, document = Net(), COMPILE | {"warmup": place == "cpu"}

    assert make_ready(net, NetworkOptions.parse(document), document, BATCHES, torch.device(place)) is net
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line in warning
    assert is_optimised(net) is (place == "cpu")


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_compiled_network_that_fails_is_not_used(place, gpus, monkeypatch, caplog):
    fail = Mock(side_effect=RuntimeError("Triton Error [CUDA]: device kernel image is invalid"))
    monkeypatch.setattr(readiness, "finds_compiler", lambda _device: True)
    monkeypatch.setattr(ahead, "finds_compiler", lambda: False)
    monkeypatch.setattr(readiness, "compile_model", lambda *_: fail)
    net = Net()

    assert make_ready(net, NetworkOptions.parse(COMPILE), COMPILE, BATCHES, torch.device(place)) is net
    assert "device kernel image is invalid" in caplog.text
    assert "runs uncompiled" in caplog.text


class Report:
    """A calibration set, and what was reported of the precision."""

    def __init__(self, rows=None):
        self.calibration = rows
        self.precision = ("", "")

    def rows(self):
        if self.calibration is None:
            raise NotInt8Error("the archive has none")
        return self.calibration

    def tell(self, used, why):
        self.precision = used, why


def in_int8(model, report, config=None, shape=(1, 8, 8)):
    document = {"precision": "int8", **(config or {})}
    calibration = Calibration(report.rows, report.tell)
    return make_ready(model, NetworkOptions.parse(document), document, Batches(4, shape), CPU, calibration)


@needs_int8
@pytest.mark.parametrize("config", [{}, COMPILE])
def test_int8_is_used_and_reported(reader, config, caplog):
    model, report = copy.deepcopy(reader), Report(calibration_set())

    assert in_int8(model, report, config) is model
    assert isinstance(model.forward, Int8Forward)
    assert report.precision[0] == "int8"
    assert "the first class agrees for" in report.precision[1]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@needs_int8
def test_int8_that_disagrees_is_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(int8, "AGREEMENT", 1.1)
    monkeypatch.setattr(readiness, "has", lambda _feature: False)
    torch.manual_seed(0)
    model, report = Residual().eval(), Report(calibration_set())
    in_int8(model, report)

    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"precision: int8 is not used, but fp32: {report.precision[1]}"
    assert "most of it is lost in " in warning
    assert report.precision[0] == "fp32"
    assert is_optimised(model)


@pytest.mark.parametrize(("has_bf16", "used"), [(True, "bf16"), (False, "fp32")])
def test_bf16_or_fp32_is_used_instead_of_int8(has_bf16, used, caplog, monkeypatch):
    monkeypatch.setattr(readiness, "has", lambda _feature: has_bf16)
    torch.manual_seed(0)
    model, plain, report = Residual().eval(), Residual().eval(), Report()
    plain.load_state_dict(model.state_dict())
    in_int8(model, report)
    rows = held_out().pictures[:3]
    with torch.inference_mode():
        difference = deviation(model(rows), plain(rows))

    assert difference < (0.1 if has_bf16 else 1e-4)
    if is_able():
        assert report.precision == (used, "the archive has none")
        assert caplog.messages[0] == f"precision: int8 is not used, but {used}: the archive has none"


def test_a_program_stays_without_int8(monkeypatch):
    monkeypatch.setattr(readiness, "has", lambda _feature: True)
    program = torch.fx.symbolic_trace(Net())
    report = Report(rows(16))

    assert in_int8(program, report, shape=(3, 16, 16)) is program
    assert report.precision[0] == "fp32"


@needs_int8
def test_shapes_of_another_calibration_set_are_named(reader):
    report = Report(torch.zeros(20, 1, 9, 9))
    in_int8(copy.deepcopy(reader), report)

    assert report.precision[1] == "a row of the calibration set is [1, 9, 9], the network's are [1, 8, 8]"


@pytest.mark.parametrize(
    ("capability", "eager", "used"), [((9, 0), True, "bf16"), ((9, 0), False, "tf32"), ((7, 5), True, "fp32")]
)
def test_a_gpu_uses_the_next_best_of_int8(capability, eager, used, reader, gpus):
    gpus.capability = capability
    model = copy.deepcopy(reader) if eager else torch.fx.symbolic_trace(reader)
    report = Report(calibration_set())
    calibration = Calibration(report.rows, report.tell)
    document = {"precision": "int8"}
    device = torch.device("cuda")
    make_ready(model, NetworkOptions.parse(document), document, Batches(4, (1, 8, 8)), device, calibration)

    assert report.precision == (used, "the network is on a GPU, and int8 is for processors")
    assert next(model.parameters()).dtype == (torch.bfloat16 if used == "bf16" else torch.float32)


def test_int8_needs_the_instructions(reader, monkeypatch):
    monkeypatch.setattr(readiness, "is_able", lambda: False)
    monkeypatch.setattr(readiness, "has", lambda _feature: False)
    report = Report(calibration_set())
    in_int8(copy.deepcopy(reader), report)

    assert report.precision == (
        "fp32",
        "this processor has no instructions that are faster in 8 bits (AVX2 or later)",
    )


def context_of(folder, make_context, config=None):
    return make_context(folder, config, modelFile="small_network.py", serializedFile="weights.pth")


class Trusting(ImageClassifier):
    """Overrides what happens to a batch, not how it loads."""

    def inference(self, data, *args, **kwargs):
        with torch.no_grad():
            return -self.model(data)


class Careful(ImageClassifier):
    def initialize(self, context):
        super().initialize(context)
        self.model.fc = nn.Identity()


def test_the_classifier_is_optimised(small_folder, make_context, begin):
    handler = Trusting()
    handler.initialize(context_of(small_folder, make_context))
    begin(handler.context, 2)

    assert is_optimised(handler.model)
    assert handler.inference(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_an_initialize_of_ones_own_is_left_alone(small_folder, make_context):
    """A class that may change the network after loading is not optimised unless the archive sets it."""
    careful, requested = Careful(), Careful()
    careful.initialize(context_of(small_folder, make_context))
    requested.initialize(context_of(small_folder, make_context, {"optimize": "auto"}))

    assert not is_optimised(careful.model)
    assert careful.inference(torch.zeros(2, 3, 64, 64)).shape == (2, 32)
    assert is_optimised(requested.model)


def test_a_shape_comes_from_the_configuration(small_folder, make_context):
    plain, report = BaseHandler(), BaseHandler()
    plain.initialize(context_of(small_folder, make_context))
    report.initialize(context_of(small_folder, make_context, {"warmup": {"shape": [3, 64, 64]}}))

    assert not is_optimised(plain.model)
    assert is_optimised(report.model)


@needs_int8
def test_a_classifier_runs_in_int8(small_folder, make_context, begin, pictures, tmp_path):
    folder = tmp_path / "archive"
    shutil.copytree(small_folder, folder)
    (folder / "calibration").mkdir()
    for number, picture in enumerate([*pictures, b"no picture"]):
        (folder / "calibration" / str(number)).write_bytes(picture)
    context = context_of(
        folder, make_context, {"handler": {"precision": "int8", "calibration": "calibration"}}
    )
    handler = ImageClassifier()
    handler.initialize(context)
    state = begin(context, 2)
    answers = handler.handle([{"data": picture} for picture in pictures[:2]], context)

    assert context._ms_precision["asked"] == "int8"
    assert "of the 5 rows of the calibration set" in context._ms_precision["why"]
    assert len(answers) == 2
    assert not state.rejections


@needs_int8
def test_a_missing_calibration_set_is_a_warning(small_folder, make_context):
    context = context_of(small_folder, make_context, {"precision": "int8"})
    BaseHandler().initialize(context)

    (warning,) = context._ms_warnings
    assert warning.startswith("precision: int8 is not used, but ")
    assert warning.endswith("model-config.yaml names no calibration set (handler: calibration: FOLDER)")
    assert context._ms_precision["used"] in {"fp32", "bf16"}
