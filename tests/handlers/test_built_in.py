"""The names of built-in handlers, and small networks behind them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver.engine.worker.loader import load_handler
from modelserver_handlers import BUILT_IN
from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.image_classifier import ImageClassifier

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, pictures):
        return self.layer(pictures.mean((2, 3)))
"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_is_found_by_its_name(name: str, tmp_path: Path) -> None:
    """The loader finds exactly one handler behind each name, with or without ``.py``."""
    for handler in (name, f"{name}.py"):
        loaded = load_handler(handler, tmp_path)
        assert loaded.built_in
        assert callable(loaded.initialize)


@pytest.mark.parametrize("kind", [ImageClassifier, DenseNetHandler])
def test_few_classes_are_all_answered(
    kind: type[ImageClassifier], tmp_path: Path, make_context: Any, begin: Any, pictures: list[bytes]
) -> None:
    """A network of three classes answers three (TorchServe fails), or as many as ``topk`` says."""
    name = f"three_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(SOURCE)
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    for config, count in (({}, 3), ({"handler": {"topk": 2}}, 2)):
        handler = kind()
        handler.initialize(
            make_context(tmp_path, {"warmup": False, "optimize": "off", **config}, modelFile=name)
        )
        begin(handler.context, 2)

        answers = handler.handle([{"data": file} for file in pictures[:2]], handler.context)

        assert [len(answer) for answer in answers] == [count] * 2
        prepared = handler.preprocess([pictures[0]])
        with torch.inference_mode():
            scores = handler.model(prepared).softmax(1)[0].tolist()
        best = sorted(zip(scores, "abc", strict=True), reverse=True)[:count]
        assert list(answers[0].items()) == [(label, pytest.approx(score, abs=1e-5)) for score, label in best]
