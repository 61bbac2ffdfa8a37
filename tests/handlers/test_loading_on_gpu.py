"""Networks that are loaded on a simulated GPU: warmed up, compiled, recorded."""

import json

import pytest
import torch
from tests.handlers.conftest import TINY_TEXT, WORDS
from tests.handlers.parts import network
from torch import nn
from torch._dynamo import OptimizedModule

from modelserver_handlers import BUILT_IN
from modelserver_handlers.base import BaseHandler
from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier

SMALL_PICTURES = {"resize": 40, "crop": 32}


class Three(nn.Module):
    """Three numbers for each picture; remembers the batches' sizes and whether they were channels-last."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)
        self.seen = []
        self.eval()

    def forward(self, pictures):
        if not torch.compiler.is_compiling():
            self.seen.append((len(pictures), pictures.is_contiguous(memory_format=torch.channels_last)))
        return self.layer(pictures).mean((2, 3))


@pytest.fixture
def classifier(tmp_path, make_context, monkeypatch):
    """Initialises a classifier with a network on a GPU, or on the processor; returns it."""

    def made(network, config=None, gpu=0):
        handler = ImageClassifier()
        monkeypatch.setattr(handler, "_ms_load_model", lambda _folder: network)
        config = config or {}
        context = make_context(tmp_path, config | {"handler": SMALL_PICTURES | config.get("handler", {})})
        context.system_properties["gpu_id"] = gpu
        handler.initialize(context)
        return handler

    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    return made


def rows_of(pictures, count):
    """Requests; from three on, the last has a tensor instead of a picture."""
    rows = [{"data": pictures[idx % len(pictures)]} for idx in range(count)]
    if count > 2:
        rows[-1] = {"data": torch.ones(3, 32, 32).tolist()}
    return rows


@pytest.mark.usefixtures("gpus")
def test_nothing_is_compiled_in_requests(classifier, begin, pictures):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    handler = classifier(Three(), {"pt2": {"compile": {"enable": True, "backend": "eager"}}})
    compiled = counters["unique_graphs"]
    for count in (8, 1, 3, 5):
        begin(handler.context, count)
        assert len(handler.handle(rows_of(pictures, count), handler.context)) == count

    assert compiled > 0
    assert counters["unique_graphs"] == compiled


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("optimize", ["auto", "off"])
def test_batches_have_one_memory_format(optimize, classifier, begin, pictures):
    """That of warming up is that of requests: kernels are loaded and chosen for it."""
    network = Three()
    handler = classifier(network, {"optimize": optimize})
    warmed = set(network.seen)
    network.seen.clear()
    for count in (8, 1, 4):
        begin(handler.context, count)
        handler.handle(rows_of(pictures, count), handler.context)

    assert {size for size, _ in warmed} == {8, 4, 2, 1}
    assert all(ordered is (optimize == "auto") for size, ordered in (*warmed, *network.seen))


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("config", "requested", "used"),
    [
        ({}, "default", "tf32"),
        ({"precision": "tf32"}, "tf32", "tf32"),
        ({"precision": "fp32"}, "fp32", "fp32"),
    ],
    ids=str,
)
def test_the_precision_of_float32_is_described(config, requested, used, classifier):
    context = classifier(Three(), config).context

    assert (context._ms_precision["asked"], context._ms_precision["used"]) == (requested, used)
    assert context._ms_warnings == []


def test_tf32_is_refused_on_a_processor_and_an_older_gpu(classifier, gpus):
    contexts = [classifier(Three(), config, None).context for config in ({}, {"precision": "fp32"})]
    (line,) = classifier(Three(), {"precision": "tf32"}, None).context._ms_warnings

    assert line.startswith("precision: tf32 is not used, but fp32: TF32 is for NVIDIA's GPUs")
    assert [(context._ms_warnings, context._ms_precision) for context in contexts] == [([], {}), ([], {})]

    gpus.capability = (7, 5)

    assert classifier(Three()).context._ms_warnings == []
    (line,) = classifier(Three(), {"precision": "tf32"}).context._ms_warnings
    assert line.startswith("precision: tf32 is not used, but fp32: the GPU has no TF32")


CLASSES = network(
    "Three",
    "self.layers(pictures).mean((2, 3))",
    "pictures",
    layers="nn.Sequential(nn.Conv2d(3, 3, 3, stride=4), nn.BatchNorm2d(3), nn.ReLU())",
)
PIXELS = network("Pixels", "{'out': self.layer(pictures)}", "pictures", layer="nn.Conv2d(3, 4, 3, padding=1)")
BOXES = network(
    "Boxes",
    "[{'boxes': self.layer(each[None]).mean((2, 3)), 'labels': torch.tensor([1], device=each.device),"
    " 'scores': torch.tensor([0.9], device=each.device)} for each in pictures]",
    "pictures",
    layer="nn.Conv2d(3, 4, 3)",
)
NUMBERS = network("Numbers", "self.layer(rows).relu()", "rows", layer="nn.Linear(4, 2)")
TEXTS = "import torch\n" + TINY_TEXT.replace("MODE", "mean").replace(
    "super().__init__()", "super().__init__(); torch.manual_seed(0)"
)
HANDLERS = {
    "base_handler": (BaseHandler, NUMBERS),
    "densenet_handler": (DenseNetHandler, CLASSES),
    "image_classifier": (ImageClassifier, CLASSES),
    "image_segmenter": (ImageSegmenter, PIXELS),
    "object_detector": (ObjectDetector, BOXES),
    "text_classifier": (TextClassifier, TEXTS),
}
SMALL = {"handler": {"resize": 40, "crop": 32}}
COMPILED = {"pt2": {"compile": {"enable": True, "backend": "eager"}}}
CASES = {
    **{name: (name, SMALL) for name in HANDLERS},
    "bfloat16": ("image_classifier", SMALL | {"precision": "bf16"}),
    "optimize off": ("image_classifier", SMALL | {"optimize": "off"}),
    "compiled classifier": ("image_classifier", SMALL | COMPILED),
    "compiled network of numbers": ("base_handler", COMPILED | {"warmup": {"shape": [4]}}),
    "CUDA graphs": ("image_classifier", {"handler": SMALL["handler"] | {"cuda_graphs": True}}),
    "nvJPEG": ("image_classifier", {"handler": SMALL["handler"] | {"decode": "nvjpeg"}}),
}


def test_every_built_in_handler_with_a_network_is_here():
    """``tabular`` computes nothing with torch, and ``vllm_handler`` nothing itself."""
    assert HANDLERS.keys() == BUILT_IN.keys() - {"tabular", "vllm_handler"}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_processors(case, gpus, tmp_path, make_context, begin, pictures):
    name, config = CASES[case]
    kind, source = HANDLERS[name]
    bodies = {
        "base_handler": [[1, 2, 3, 4], [0.5, 0, -1, 2]],
        "text_classifier": ["The cat sat.", "Not on the mat"],
    }
    file = f"{name}_{abs(hash(tmp_path))}.py"
    (tmp_path / file).write_text(source)
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    torch.save(WORDS, tmp_path / "source_vocab.pt")
    answers = []
    for gpu in (None, 0):
        assert gpus.contexts == set()
        context = make_context(tmp_path, config, modelFile=file)
        context.system_properties["gpu_id"] = gpu
        handler = kind()
        handler.initialize(context)
        begin(context, 2)
        rows = [{"data": body} for body in bodies.get(name, pictures[:2])]
        answers.append(numbers_of(handler.handle(rows, context)))

    assert handler.device == torch.device("cuda", 0)
    assert gpus.contexts == {0}
    assert isinstance(handler.model, OptimizedModule) == ("compiled" in case)
    assert answers[0]
    assert answers[1] == pytest.approx(answers[0], abs=0.02 if case == "bfloat16" else 1e-5)


def numbers_of(answer):
    """All of them, those of mappings in the order of their keys."""
    if isinstance(answer, dict):
        return numbers_of([answer[key] for key in sorted(answer)])
    return [each for part in answer for each in numbers_of(part)] if isinstance(answer, list) else [answer]


def test_the_second_gpu_alone_is_used(gpus, tmp_path, make_context, begin, pictures):
    gpus.count = 2
    name = f"three_{abs(hash(tmp_path))}.py"
    (tmp_path / name).write_text(CLASSES)
    handler = ImageClassifier()
    context = make_context(tmp_path, {"handler": {"profile": True}}, modelFile=name)
    context.system_properties["gpu_id"] = 1
    handler.initialize(context)
    begin(handler.context, 2)
    answers = handler.handle([{"data": file} for file in pictures[:2]], handler.context)

    assert len(answers) == 2
    assert gpus.contexts == {1}
