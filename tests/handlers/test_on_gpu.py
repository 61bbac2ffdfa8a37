"""Built-in handlers on a simulated GPU answer as on the processor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.handlers.conftest import TINY_TEXT, WORDS
from torch._dynamo import OptimizedModule

from modelserver_handlers import BUILT_IN
from modelserver_handlers.base import BaseHandler
from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_gpu import SimulatedGpus

CLASSES = """
import torch
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 3, stride=4), nn.BatchNorm2d(3), nn.ReLU())

    def forward(self, pictures):
        return self.layers(pictures).mean((2, 3))
"""
PIXELS = """
import torch
from torch import nn

class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, pictures):
        return {"out": self.layer(pictures)}
"""
BOXES = """
import torch
from torch import nn

class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, pictures):
        found = [self.layer(picture[None]).mean((0, 2, 3)) for picture in pictures]
        scores = torch.tensor([0.9], device=found[0].device)
        labels = torch.tensor([1], device=found[0].device)
        return [{"boxes": box[None], "labels": labels, "scores": scores} for box in found]
"""
NUMBERS = """
import torch
from torch import nn

class Numbers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, rows):
        return self.layer(rows).relu()
"""
TEXTS = "import torch\n" + TINY_TEXT.replace("MODE", "mean").replace(
    "super().__init__()", "super().__init__(); torch.manual_seed(0)"
)
HANDLERS: dict[str, tuple[type[BaseHandler], str]] = {
    "base_handler": (BaseHandler, NUMBERS),
    "densenet_handler": (DenseNetHandler, CLASSES),
    "image_classifier": (ImageClassifier, CLASSES),
    "image_segmenter": (ImageSegmenter, PIXELS),
    "object_detector": (ObjectDetector, BOXES),
    "text_classifier": (TextClassifier, TEXTS),
}
SMALL = {"handler": {"resize": 40, "crop": 32}}
COMPILED = {"pt2": {"compile": {"enable": True, "backend": "eager"}}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, SMALL) for name in HANDLERS},
    "bfloat16": ("image_classifier", SMALL | {"precision": "bf16"}),
    "optimize off": ("image_classifier", SMALL | {"optimize": "off"}),
    "compiled classifier": ("image_classifier", SMALL | COMPILED),
    "compiled network of numbers": ("base_handler", COMPILED | {"warmup": {"shape": [4]}}),
    "CUDA graphs": ("image_classifier", {"handler": SMALL["handler"] | {"cuda_graphs": True}}),
    "nvJPEG": ("image_classifier", {"handler": SMALL["handler"] | {"decode": "nvjpeg"}}),
}


def test_every_built_in_handler_with_a_network_is_here() -> None:
    """``tabular`` computes nothing with torch."""
    assert HANDLERS.keys() == BUILT_IN.keys() - {"tabular"}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_processors(
    case: str, gpus: SimulatedGpus, tmp_path: Path, make_context: Any, begin: Any, pictures: list[bytes]
) -> None:
    """A batch gets the same ones, by a handler that was told the number of a GPU and by one that was not."""
    name, config = CASES[case]
    kind, source = HANDLERS[name]
    bodies: dict[str, list[Any]] = {
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


def numbers_of(answer: Any) -> list[float]:
    """All of them, those of mappings in the order of their keys."""
    if isinstance(answer, dict):
        return numbers_of([answer[key] for key in sorted(answer)])
    return [each for part in answer for each in numbers_of(part)] if isinstance(answer, list) else [answer]


def test_the_second_gpu_alone_is_used(
    gpus: SimulatedGpus, tmp_path: Path, make_context: Any, begin: Any, pictures: list[bytes]
) -> None:
    """A worker of GPU 1 has no context on GPU 0: not by its threads, nor by its timers."""
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
