"""TextClassifier: whole batches of texts, numbers equal to the network's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.errors import ModelLoadError, PredictionException
from modelserver_handlers.text_classifier import TextClassifier

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
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

Make = Callable[..., TextClassifier]


@pytest.fixture
def make(tmp_path: Path, make_context: Any) -> Make:
    """A classifier with a seeded network."""

    def made(
        config: dict[str, Any] | None = None, words: Any = WORDS, mode: str = "mean", **manifest: str
    ) -> TextClassifier:
        name = f"tiny_text_{tmp_path.name.replace('-', '_')}.py"
        (tmp_path / name).write_text(SOURCE.replace("MODE", mode))
        torch.save(words, tmp_path / "source_vocab.pt")
        torch.manual_seed(5)
        handler = TextClassifier()
        handler.initialize(make_context(tmp_path, config, modelFile=name, **manifest))
        return handler

    return made


def alone(handler: TextClassifier, ids: list[int]) -> list[float]:
    """The network's softmax for one text of these numbers."""
    with torch.inference_mode():
        logits = handler.model(torch.tensor(ids, dtype=torch.int64), torch.tensor([0]))
    found: list[float] = logits.softmax(dim=1)[0].tolist()
    return found


def test_a_batch_is_answered_whole(make: Make, begin: Any) -> None:
    """Each text gets all classes in their order, with the numbers it would get alone, to 1e-5."""
    handler = make()
    rows = [
        {"data": "The <b>cat</b> sat!"},
        {"body": bytearray(b"It isn't a cat.")},
        {"data": [5, 4]},
        {"b64": "dGhlIG1hdA=="},
        {"data": "?!"},
    ]
    begin(handler.context, len(rows))

    answers = handler.handle(rows, handler.context)

    numbers = [[1, 2, 3, 8, 9], [0, 6, 7, 0, 2, 0, 10, 0, 0], [5, 4], [1, 5, 0], []]
    assert [list(answer) for answer in answers] == [["0", "1", "2"]] * 5
    for answer, ids in zip(answers, numbers, strict=True):
        assert list(answer.values()) == pytest.approx(alone(handler, ids), abs=1e-5)


def test_bad_texts_are_rejected_alone(make: Make, begin: Any) -> None:
    """What is no text gets its own 400, its neighbours their answers (F8)."""
    handler = make()
    state = begin(handler.context, 5)
    rows = [{"data": "the cat"}, {"body": b"\xff"}, {"data": [99]}, {"body": b""}, {"data": "the mat"}]

    answers = handler.handle(rows, handler.context)

    assert [answer is None for answer in answers] == [False, True, True, True, False]
    assert {idx: status for idx, (status, _) in state.rejections.items()} == {1: 400, 2: 400, 3: 400}
    assert "token numbers must be from 0 to 10" in state.rejections[2][1]


def test_labels_topk_and_ngrams(make: Make, begin: Any, tmp_path: Path) -> None:
    """Labels come from index_to_name.json; ``handler`` sets how many are answered, and how long runs are."""
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "bad", "1": "fair", "2": "good"}))
    handler = make({"handler": {"topk": 2, "ngrams": 1}})
    begin(handler.context)

    (answer,) = handler.handle(["the cat"], handler.context)

    scores = dict(zip(("bad", "fair", "good"), alone(handler, [1, 2]), strict=True))
    best = sorted(scores, key=lambda label: -scores[label])[:2]
    assert list(answer) == best
    assert [answer[label] for label in best] == pytest.approx([scores[label] for label in best])


@pytest.mark.parametrize("option", ["topk", "ngrams"])
def test_bad_options_are_refused(option: str, make: Make) -> None:
    """What is no whole number stops the load, naming the key."""
    with pytest.raises(
        ModelLoadError, match=f"handler: {option} must be a whole number of at least 1, got 0"
    ):
        make({"handler": {option: 0}})


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_explanations_add_up(mode: str, make: Make, begin: Any) -> None:
    """For each text of a batch, what its words add makes the difference to a text without words."""
    handler = make(mode=mode)
    rows = [{"data": "the cat sat", "target": 2}, {"data": "on the mat"}, {"data": "cat", "target": "1"}]
    begin(handler.context, 3, explain="True")

    answers = handler.handle(rows, handler.context)

    assert [answer["words"] for answer in answers] == [["the", "cat", "sat"], ["on", "the", "mat"], ["cat"]]
    with torch.inference_mode():
        empty = handler.model(torch.tensor([], dtype=torch.int64), torch.tensor([0]))[0]
        for answer, ids, target in zip(
            answers, ([1, 2, 3, 8, 9], [4, 1, 5, 0, 0], [2]), (2, 0, 1), strict=True
        ):
            full = handler.model(torch.tensor(ids), torch.tensor([0]))[0]
            assert len(answer["importances"]) == len(answer["words"])
            assert sum(answer["importances"]) == pytest.approx((full - empty)[target].item(), abs=1e-5)


def test_empty_texts_are_explained(make: Make, begin: Any) -> None:
    """A text of no words has no importances."""
    handler = make()
    begin(handler.context, 2, explain="True")

    answers = handler.handle(["!", "cat"], handler.context)

    assert answers[0] == {"importances": [], "words": []}
    assert len(answers[1]["importances"]) == 1


def test_unknown_classes_are_not_explained(make: Make, begin: Any) -> None:
    """A target that the network does not have is a 400."""
    handler = make()
    begin(handler.context, explain="True")

    with pytest.raises(PredictionException, match="the model has no class 3") as refusal:
        handler.handle([{"data": "cat", "target": 3}], handler.context)
    assert refusal.value.error_code == 400


def test_networks_that_cannot_be_seen_into(make: Make, begin: Any) -> None:
    """A bag of maxima, and a network without a bag, are a 501."""
    for handler in (make(mode="max"), make()):
        if handler.model.embedding.mode != "max":
            handler.model = torch.nn.Linear(1, 1)
        begin(handler.context, explain="True")

        with pytest.raises(PredictionException) as refusal:
            handler.handle(["cat"], handler.context)
        assert refusal.value.error_code == 501
