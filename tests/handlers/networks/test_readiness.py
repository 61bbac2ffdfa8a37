"""From a loaded network to one that is ready."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.handlers.processor import HAS_BF16
from torch import nn

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import ModelOptions
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.networks import ahead, readiness
from modelserver_handlers.networks.optimize import FastForward, deviation
from modelserver_handlers.networks.readiness import Batches, make_ready

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
COMPILE = {"pt2": {"compile": {"enable": True}}}
BATCHES = Batches(4, (3, 16, 16))


class Net(nn.Module):
    """A convolution, a norm, an activation; counts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.eval()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows x 3 x any x any to rows x 8."""
        return torch.relu(self.norm(self.conv(rows))).mean((2, 3))


class Recording(nn.Module):
    """Remembers the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.eval()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What it is given."""
        self.sizes.append(len(rows))
        return rows


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))


def ready(model: Any, config: dict[str, Any] | None = None, batches: Batches = BATCHES) -> Any:
    """As BaseHandler does it, on a processor."""
    return make_ready(model, ModelOptions.parse(config or {}), config or {}, batches, CPU)


def rows(count: int = 3) -> torch.Tensor:
    """Seeded inputs."""
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def is_optimised(model: Any) -> bool:
    """Whether it got another forward."""
    return isinstance(model.forward, FastForward)


def test_optimised_by_default() -> None:
    """The network stays the object that it is, and is optimised."""
    net = Net()

    assert ready(net) is net
    assert is_optimised(net)


def test_off_is_the_plain_network() -> None:
    """With ``optimize: off`` every bit of the outputs is the plain network's."""
    net, plain = Net(), Net()
    ready(net, {"handler": {"optimize": "off"}})

    assert not is_optimised(net)
    with torch.inference_mode():
        assert torch.equal(net(rows()), plain(rows()))


def test_nothing_is_known_of_the_inputs() -> None:
    """Without a shape nothing can be compared nor warmed up."""
    recording = Recording()
    ready(recording, {}, Batches(4, None))

    assert recording.sizes == []
    assert not is_optimised(ready(Net(), {}, Batches(4, None)))


def test_warm() -> None:
    """Full batches, lone rows and the sizes between are run once."""
    recording = Recording()
    ready(recording)

    assert recording.sizes == [4, 1, 2]


def test_no_warming_up() -> None:
    """``warmup: false`` leaves the first batches to the clients."""
    recording = Recording()
    ready(recording, {"warmup": False})

    assert recording.sizes == []


def test_a_failing_warm_up_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A network that takes no such rows is served all the same."""
    net = Net()

    assert ready(net, {}, Batches(2, (7, 16, 16))) is net
    assert "Warming up with rows of (7, 16, 16) failed" in caplog.text


@pytest.mark.parametrize("optimize", ["auto", "off"])
def test_bf16(optimize: str) -> None:
    """``precision: bf16`` counts optimised, not optimised, and where that cannot be; outputs stay float32."""
    net, plain = Net(), Net()
    ready(net, {"precision": "bf16", "optimize": optimize})
    with torch.inference_mode():
        answers = net(rows())

    assert is_optimised(net) is (optimize == "auto" and HAS_BF16)
    assert answers.dtype == torch.float32
    assert 1e-5 < deviation(answers, plain(rows()).detach()) < 0.05


def test_bf16_for_a_program() -> None:
    """An exported program's precision was settled when it was exported."""
    program = torch.export.export(Net(), (rows(),)).module()

    with pytest.raises(ModelLoadError, match="precision: bf16 needs an eager network"):
        ready(program, {"precision": "bf16"})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache torch.compile is used: the same numbers, and nothing compiled once it is ready."""
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    torch._dynamo.reset()
    net, plain = Net(), Net()
    compiled = ready(net, COMPILE)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compiled is not net
    for size in range(1, 6):
        inputs = rows(size)
        with torch.inference_mode():
            assert deviation(compiled(inputs), plain(inputs)) < 1e-4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no C++ compiler the network runs uncompiled, with one warning."""
    monkeypatch.setattr(readiness, "finds_compiler", lambda: False)
    monkeypatch.setattr(ahead, "finds_compiler", lambda: False)
    net = Net()

    assert ready(net, COMPILE) is net
    assert [record.levelname for record in caplog.records if record.levelname != "DEBUG"] == ["WARNING"]
    assert "C++ compiler" in caplog.text
    assert is_optimised(net)


def test_a_compiled_network_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails when it is first run is not used."""

    def fail(_rows: torch.Tensor) -> None:
        raise RuntimeError("cannot find -lstdc++")

    monkeypatch.setattr(readiness, "finds_compiler", lambda: True)
    monkeypatch.setattr(ahead, "finds_compiler", lambda: False)
    monkeypatch.setattr(readiness, "compile_model", lambda *_: fail)
    net = Net()

    assert ready(net, COMPILE) is net
    assert "cannot find -lstdc++" in caplog.text
    assert "runs uncompiled" in caplog.text


# Handlers


def context_of(folder: Path, make_context: Any, config: dict[str, Any] | None = None) -> Any:
    """Of the small ResNet's folder."""
    return make_context(folder, config, modelFile="model.py", serializedFile="weights.pth")


class Trusting(ImageClassifier):
    """Overrides what happens to a batch, not how it loads."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, negative."""
        with torch.no_grad():
            return -self.model(data)


class Careful(ImageClassifier):
    """Does something to the network after loading it."""

    def initialize(self, context: Any) -> None:
        """As ever, and one layer less."""
        super().initialize(context)
        self.model.fc = nn.Identity()


def test_the_classifier_is_optimised(resnet18_folder: Path, make_context: Any, begin: Any) -> None:
    """Handlers that load as we do are optimised; one's own ``inference`` may call the model as before."""
    handler = Trusting()
    handler.initialize(context_of(resnet18_folder, make_context))
    begin(handler.context, 2)

    assert is_optimised(handler.model)
    assert handler.inference(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_an_initialize_of_ones_own(resnet18_folder: Path, make_context: Any) -> None:
    """A class that may change the network after loading is left alone unless the archive asks for it."""
    careful, asked = Careful(), Careful()
    careful.initialize(context_of(resnet18_folder, make_context))
    asked.initialize(context_of(resnet18_folder, make_context, {"optimize": "auto"}))

    assert not is_optimised(careful.model)
    assert careful.inference(torch.zeros(2, 3, 64, 64)).shape == (2, 512)
    assert is_optimised(asked.model)


def test_a_shape_from_the_configuration(resnet18_folder: Path, make_context: Any) -> None:
    """A handler that knows nothing of its inputs is told by ``warmup: shape``."""
    plain, told = BaseHandler(), BaseHandler()
    plain.initialize(context_of(resnet18_folder, make_context))
    told.initialize(context_of(resnet18_folder, make_context, {"warmup": {"shape": [3, 64, 64]}}))

    assert not is_optimised(plain.model)
    assert is_optimised(told.model)


def test_a_compiled_setting_that_is_none(resnet18_folder: Path, make_context: Any) -> None:
    """A malformed option stops the load."""
    with pytest.raises(ModelLoadError, match="optimize must be one of"):
        BaseHandler().initialize(context_of(resnet18_folder, make_context, {"optimize": "very"}))
