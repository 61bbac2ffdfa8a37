"""Built-in handlers on a simulated GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelserver_handlers.image_classifier import ImageClassifier

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_gpu import SimulatedGpus

SOURCE = """
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)

    def forward(self, pictures):
        return self.layer(pictures).mean((2, 3))
"""


CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "bf16"},
    {"pt2": {"compile": {"enable": True, "backend": "eager"}}},
)


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=str)
def test_pictures_are_classified(
    config: dict[str, Any],
    gpus: SimulatedGpus,
    tmp_path: Path,
    make_context: Any,
    begin: Any,
    pictures: list[bytes],
) -> None:
    """On a GPU as on a processor."""
    name = f"three_{abs(hash(tmp_path))}.py"
    (tmp_path / name).write_text(SOURCE)
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    handler = ImageClassifier()
    context = make_context(tmp_path, config, modelFile=name)
    context.system_properties["gpu_id"] = 0
    handler.initialize(context)
    begin(handler.context, 2)

    answers = handler.handle([{"data": file} for file in pictures[:2]], handler.context)

    assert [len(answer) for answer in answers] == [3, 3]
    assert handler.device.type == "cuda"
    assert gpus.contexts == {0}
