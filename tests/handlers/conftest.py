import contextlib
import gc
import io
import json
import sys

import pytest
import torch
from PIL import Image
from tests.simulated_gpu import SimulatedGpus

from modelserver_handlers import current_device
from modelserver_handlers.compat import PATH
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.text_classifier import TextClassifier
from modelserver_handlers.zoo import calibrate

SMALL_NETWORK = """
from torch import nn

class SmallNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 4, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.last = nn.Sequential(nn.Conv2d(8, 32, 3, 4, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.fc = nn.Linear(32, 1000)

    def forward(self, pictures):
        rows = self.stem(pictures)
        rows = (self.block(rows) + rows).relu()
        return self.fc(self.last(rows).mean((2, 3)))
"""


def draw_picture(seed, size=(320, 240)):
    """A colourful RGB picture with large shapes and fine grain."""
    generator = torch.Generator().manual_seed(seed)
    width, height = size
    shapes = torch.rand(1, 3, 5, 5, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(shapes, size=(height, width), mode="bilinear")[0]
    grain = 10 * torch.randn(3, height, width, generator=generator)
    pixels = (smooth + grain).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    return Image.frombytes("RGB", size, pixels.numpy().tobytes())


def encode_picture(picture, form="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def picture():
    return draw_picture


@pytest.fixture(scope="session")
def encode():
    return encode_picture


@pytest.fixture(scope="session")
def pictures():
    return [
        encode_picture(draw_picture(1)),
        encode_picture(draw_picture(2, (240, 400)), "JPEG", quality=90),
        encode_picture(draw_picture(3, (100, 90))),
        encode_picture(draw_picture(4, (600, 257)), "JPEG"),
        encode_picture(draw_picture(5, (256, 256)), "BMP"),
    ]


class Body(bytearray):
    pass


class Played:
    """Takes the part of a GPU's copy stream, and says what is done with it: the processor does the work."""

    device = torch.device("cpu")

    def __init__(self):
        self.calls = []

    def pinned(self, *shape):
        return torch.full(shape, 77, dtype=torch.uint8)

    @contextlib.contextmanager
    def working(self):
        self.calls.append("begin")
        yield
        self.calls.append("done")

    def hand_over(self, batch):
        self.calls.append(f"hand over {len(batch)}")


@pytest.fixture
def gpus(monkeypatch):
    # A worker does these things only once, so each test resets them.
    monkeypatch.setattr(current_device, "_enter", None)
    matrices, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield SimulatedGpus().install(monkeypatch.setattr)
    torch.set_float32_matmul_precision(matrices)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.fixture(autouse=True)
def memory_stays(monkeypatch):
    """Loading a model gives no memory back: half a second in a process that has imported as much as this."""
    monkeypatch.setattr("modelserver_handlers.base.give_back_memory", lambda: None)


@pytest.fixture
def collects_nothing():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def make_context():
    """A context for a model folder; keyword arguments become the manifest's model entry."""

    def make(folder, config=None, pixels=True, **model):
        manifest = {"model": {"modelName": "m", **model}}
        return Context("m", str(folder), manifest, 8, None, "0.12.0", pixels, None, config)

    return make


@pytest.fixture(scope="session")
def begin():
    def start(context, size=1, **properties):
        ids = [f"id-{number}" for number in range(size)]
        own = {"explain": "False", "url_path": "predict", **properties}
        state = BatchState(ids, [{} for _ in ids], properties=[own] * size)
        context._ms_begin(state)
        return state

    return start


@pytest.fixture(scope="session")
def small_network():
    """A classifier of 1000 classes that is small, with calibrated random weights."""
    scope = {}
    exec(SMALL_NETWORK, scope)
    return seeded(scope["SmallNetwork"])


@pytest.fixture(scope="session")
def small_resnet():
    """The smallest of torchvision's ResNets, with calibrated random weights."""
    from torchvision.models.resnet import BasicBlock, ResNet

    return seeded(lambda: ResNet(BasicBlock, [1, 1, 1, 1]))


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make()
        calibrate(network, 0)
    return network


@pytest.fixture(scope="session")
def small_folder(small_network, tmp_path_factory):
    """What an unpacked archive of the small network holds: small_network.py, weights.pth, labels."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small_network.py").write_text(SMALL_NETWORK)
    torch.save(small_network.state_dict(), folder / "weights.pth")
    labels = {str(number): [f"n{number}", f"label {number}"] for number in range(1000)}
    (folder / "index_to_name.json").write_text(json.dumps(labels))
    return folder


TINY_TEXT = """
from torch import nn

class TinyText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(12, 5, mode="MODE")
        self.layer = nn.Linear(5, 3)

    def forward(self, ids, offsets):
        return self.layer(self.embedding(ids, offsets)).tanh()
"""


WORDS = ["<unk>", "the", "cat", "sat", "on", "mat", "is", "not", "the cat", "cat sat", "is not"]


@pytest.fixture
def make_classifier(tmp_path, make_context):
    def made(config=None, words=WORDS, mode="mean", **manifest):
        name = f"tiny_text_{tmp_path.name.replace('-', '_')}.py"
        (tmp_path / name).write_text(TINY_TEXT.replace("MODE", mode))
        torch.save(words, tmp_path / "source_vocab.pt")
        torch.manual_seed(5)
        handler = TextClassifier()
        handler.initialize(make_context(tmp_path, config, modelFile=name, **manifest))
        return handler

    return made


def alone(handler, ids):
    """The network's softmax for one text of these numbers."""
    with torch.inference_mode():
        logits = handler.model(torch.tensor(ids, dtype=torch.int64), torch.tensor([0]))
    return logits.softmax(dim=1)[0].tolist()


@pytest.fixture
def ts_names(monkeypatch):
    """``ts`` can be imported, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(PATH)
    yield
    for name in [name for name in sys.modules if name == "ts" or name.startswith("ts.")]:
        del sys.modules[name]
