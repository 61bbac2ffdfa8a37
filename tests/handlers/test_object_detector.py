import io
import json
from typing import Any, List, Optional  # noqa: UP035 - as networks for TorchScript say it

import pytest
import torch
from PIL import Image
from torchvision.models import detection
from torchvision.transforms.functional import to_tensor

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.object_detector import ObjectDetector, takes_list

SOURCE = """
import torch

class TinyDetection(torch.nn.Module):
    '''Finds the whole picture, its brightest corner, and a speck; scores come from the pixels.'''

    def forward(self, pictures):
        answers = []
        for picture in pictures:
            height, width = picture.shape[1:]
            boxes = torch.tensor([[0.0, 0, width, height], [1, 2, 3, 4], [0, 0, 1, 1]])
            scores = torch.stack((picture.max(), picture.mean(), picture.mean() / 10))
            answers.append({"boxes": boxes, "labels": torch.tensor([1, 7, 2]), "scores": scores})
        return answers
"""
SSD = """
from torch import nn
from torchvision.models.detection import ssd
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator

class TinySSD(ssd.SSD):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 4, 3, stride=16, padding=1),
            DefaultBoxGenerator([[2]], scales=[0.3, 0.6]),
            (64, 64),
            4,
            head=ssd.SSDHead([4], [4], 4),
            score_thresh=0.0,
            detections_per_img=6,
        )
"""


@pytest.fixture
def make(tmp_path, make_context):
    def made(config: dict[str, Any] | None = None, source: str = SOURCE) -> ObjectDetector:
        # A name of its own: modules of a name are imported once.
        name = f"detection_{tmp_path.name.replace('-', '_')}.py"
        (tmp_path / name).write_text(source)
        handler = ObjectDetector()
        handler.initialize(make_context(tmp_path, config, modelFile=name))
        return handler

    return made


def test_pictures_of_different_sizes_share_a_batch(make, begin, pictures):
    handler = make()
    begin(handler.context, len(pictures))

    answers = handler.handle([{"body": file} for file in pictures], handler.context)

    for answer, file in zip(answers, pictures, strict=True):
        picture = Image.open(io.BytesIO(file)).convert("RGB")
        pixels = to_tensor(picture)
        whole = [0.0, 0.0, *map(float, picture.size)]
        expected = [("1", whole, pixels.max()), ("7", [1, 2, 3, 4], pixels.mean())]
        sure = [entry for entry in expected if entry[2] >= 0.5]
        assert [list(box) for box in answer] == [[label, "score"] for label, _, _ in sure]
        assert [box[label] for box, (label, *_) in zip(answer, sure, strict=True)] == [b for _, b, _ in sure]
        assert [box["score"] for box in answer] == pytest.approx([s.item() for _, _, s in sure], abs=1e-5)


def test_torchvisions_detectors_are_served(make, begin, pictures):
    torch.manual_seed(0)
    handler = make({"handler": {"threshold": 0}}, SSD)
    begin(handler.context, 3)

    answers = handler.handle([{"data": file} for file in pictures[:3]], handler.context)

    for answer, file in zip(answers, pictures, strict=False):
        with torch.inference_mode():
            (alone,) = handler.model([to_tensor(Image.open(io.BytesIO(file)).convert("RGB"))])
        assert answer
        assert [next(iter(box)) for box in answer] == [str(label) for label in alone["labels"].tolist()]
        assert [box["score"] for box in answer] == pytest.approx(alone["scores"].tolist(), abs=1e-5)
        result = [value for box in answer for value in next(iter(box.values()))]
        assert result == pytest.approx(alone["boxes"].flatten().tolist(), abs=1e-3)


def test_labels_and_threshold_count(make, begin, tmp_path, pictures):
    (tmp_path / "index_to_name.json").write_text(json.dumps({"1": "room", "2": ["n2", "speck"]}))
    handler = make({"handler": {"threshold": 0.001}})
    begin(handler.context)

    (answer,) = handler.handle([pictures[0]], handler.context)

    assert [next(iter(box)) for box in answer] == ["room", "7", "speck"]

    class Unsure(ObjectDetector):
        threshold = 0.1

    unsure = Unsure()
    unsure.initialize(make().context)
    assert unsure.threshold == 0.1


def test_scripted_detectors_answer_losses_too(make):
    """Of torchvision's TorchScript answer, (losses, detections), the detections count."""
    handler = make()
    result = [{"boxes": torch.zeros(1, 4), "labels": torch.tensor([3]), "scores": torch.tensor([0.9])}]
    handler.model = lambda _: ({}, result)

    assert handler.postprocess(handler.inference([torch.zeros(3, 2, 2)])) == [
        [{"3": [0.0, 0.0, 0.0, 0.0], "score": pytest.approx(0.9)}]
    ]


def test_subclasses_get_what_torchserve_hands_them(make, begin, picture, encode):
    seen: list[Any] = []

    class Yolo(ObjectDetector):
        def preprocess(self, data: Any) -> Any:
            pictures = super().preprocess(data)
            seen.append(tuple(pictures.shape))
            return pictures * 1

        def postprocess(self, data: Any) -> list[Any]:
            return list(data[0].tolist())

    handler = Yolo()
    handler.initialize(make().context)
    handler.model = lambda pictures: (torch.arange(len(pictures)), None)
    begin(handler.context, 2)
    rows = [{"data": encode(picture(seed, (40, 30)))} for seed in (1, 2)]

    assert handler.handle(rows, handler.context) == [0, 1]
    assert seen == [(2, 3, 30, 40)]


class OfLists(torch.nn.Module):
    def forward(self, pictures: List[torch.Tensor], targets: Optional[int] = None) -> List[torch.Tensor]:  # noqa: UP006, UP045
        return pictures


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_networks_that_are_annotated_for_lists_get_lists(make, begin, picture, encode):
    assert takes_list(OfLists())
    assert takes_list(torch.jit.script(OfLists()))
    assert takes_list(detection.fcos_resnet50_fpn(weights=None, weights_backbone=None))
    assert not takes_list(torch.jit.script(torch.nn.ReLU()))
    assert not any(map(takes_list, (torch.nn.ReLU(), len, lambda pictures: pictures)))

    handler = make()
    handler.model = torch.jit.script(OfLists())
    begin(handler.context, 2)
    prepared = handler.preprocess([{"data": encode(picture(seed, (40, 30)))} for seed in (1, 2)])

    assert [tensor.shape for tensor in handler.inference(prepared)] == [(3, 30, 40)] * 2


def test_nothing_is_explained(make, begin, pictures):
    handler = make()
    begin(handler.context, explain="True")

    with pytest.raises(PredictionException, match="object_detector explains nothing"):
        handler.handle([pictures[0]], handler.context)
