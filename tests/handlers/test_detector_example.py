"""examples/detector: trained from nothing, packed, and asked."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.networks.modules import import_file
from modelserver_handlers.object_detector import ObjectDetector

pytestmark = pytest.mark.slow  # trains a network

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "detector"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The archive that build.py writes, loaded, and its modules."""
    folder = tmp_path_factory.mktemp("detector")
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLE))
    build: Any = import_file(EXAMPLE / "build.py")
    shapes = importlib.import_module("shapes")
    threads = torch.get_num_threads()
    # Quick on a machine that is busy with other tests too.
    torch.set_num_threads(1)
    model = build.train(200, 0)
    torch.set_num_threads(threads)
    share = build.detection_share(model)
    with zipfile.ZipFile(build.pack(model, folder)) as packed:
        packed.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_bytes())
    handler = ObjectDetector()
    handler.initialize(Context("shapes", str(folder), manifest, 8, None, "0.12.0"))
    yield handler, build, shapes, share
    sys.path.remove(str(EXAMPLE))
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_it_learns(example: Any) -> None:
    """Nine of ten shapes in pictures that training never saw are found, and hardly any others."""
    _, build, _, share = example

    assert share >= build.ENOUGH


def test_shapes_of_the_sample_picture_are_detected(example: Any) -> None:
    """Circle, square and triangle are found where they were drawn, beside a picture of another size."""
    handler, build, shapes, _ = example
    _, drawn = shapes.draw_shapes(build.SAMPLE_SEED, (160, 120))
    rows = [{"body": (EXAMPLE / "shapes.png").read_bytes()}, {"data": [[[0.9] * 64] * 48] * 3}]
    handler.context._ms_begin(BatchState(["a", "b"]))

    result, empty = handler.handle(rows, handler.context)

    expected = sorted((shapes.NAMES[shape.label], shape.box) for shape in drawn)
    boxes = sorted((label, box) for answer in result for label, box in answer.items() if label != "score")
    assert {label for label, _ in expected} == set(shapes.NAMES.values())
    assert [label for label, _ in boxes] == [label for label, _ in expected]
    assert all(build.overlap(b, w) > 0.75 for (_, b), (_, w) in zip(boxes, expected, strict=True))
    assert empty == []
