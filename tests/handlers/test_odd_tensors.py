"""Tensors that clients send to picture handlers in a shape that the network cannot take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelserver.engine.wire.messages import INSTANCE, Load, Row
from modelserver.engine.worker.metrics import HandlerMetrics
from modelserver.engine.worker.service import Service
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.object_detector import ObjectDetector

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver_handlers.vision import VisionHandler

PICKY = """
import torch

class Picky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3, stride=32)

    def forward(self, pictures):
        {answer}
"""
NETWORKS: dict[type[Any], str] = {
    ImageClassifier: "return self.layer(pictures).mean((2, 3))",
    ImageSegmenter: "return self.layer(pictures)",
    ObjectDetector: "score = [self.layer(picture[None]).mean().sigmoid()[None] for picture in pictures]\n"
    "        return [{'boxes': torch.zeros(1, 4), 'labels': torch.ones(1), 'scores': s} for s in score]",
}
SMALL = {"warmup": False, "optimize": "off", "handler": {"resize": 40, "crop": 32}}
FITTING = [[[0.5] * 32] * 32] * 3
ODD: dict[str, Any] = {
    "one dimension": [1.0, 2.0, 3.0],
    "two dimensions": [[0.5] * 32] * 32,
    "one channel": [[[0.5] * 32] * 32],
    "channels last": [[[0.5] * 3] * 40] * 40,
    "nothing": [[], [], []],
}


def serve(handler: VisionHandler, context: Any, rows: list[Any]) -> list[tuple[int, bytes]]:
    """Status and content of the answers to V1 instances that share a batch."""
    service = Service(handler.handle, context, Load("m", "1", "/", "h", 8), HandlerMetrics("m"))
    bodies = [json.dumps(row).encode() for row in rows]
    sent = [Row(f"id{n}", len(body), INSTANCE) for n, body in enumerate(bodies)]
    work = service.receive(0, sent, memoryview(b"".join(bodies)))
    service.run(work)
    return [(answer[0].status, answer[1]) for answer in work.answers if answer is not None]


@pytest.mark.parametrize("made", NETWORKS)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_only_the_odd_one_is_refused(
    made: type[VisionHandler], odd: Any, tmp_path: Path, make_context: Any
) -> None:
    """It gets a 400 that says what is needed; its neighbours in the batch get their answers."""
    name = f"picky_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(PICKY.format(answer=NETWORKS[made]))
    handler = made()
    context = make_context(tmp_path, SMALL, modelFile=name)
    handler.initialize(context)

    (first, _), (status, message), (last, _) = serve(handler, context, [FITTING, odd, FITTING])
    assert (first, last) == (200, 200)
    assert status == 400
    assert b"takes no tensor of shape" in message


def test_a_network_that_fails_is_not_the_clients_fault(tmp_path: Path, make_context: Any) -> None:
    """With a tensor as pictures give it, what the network raises stays a 500."""
    name = f"broken_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(
        "import torch\nclass Broken(torch.nn.Module):\n"
        "    def forward(self, pictures):\n        raise RuntimeError('bug')\n"
    )
    handler = ImageClassifier()
    context = make_context(tmp_path, SMALL, modelFile=name)
    handler.initialize(context)

    assert serve(handler, context, [FITTING])[0][0] == 500
