"""The base of handlers of texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.errors import ModelLoadError
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


def test_unknown_words_are_left_out_without_a_number_for_them(make: Make, begin: Any) -> None:
    """A vocabulary without ``<unk>`` knows some words and no others."""
    handler = make(words={"cat": 4, "the": 2})
    begin(handler.context)

    (answer,) = handler.handle(["the grey cat"], handler.context)

    assert list(answer.values()) == pytest.approx(alone(handler, [2, 4]), abs=1e-5)


def test_vocabulary_of_the_manifest(make: Make, tmp_path: Path) -> None:
    """``sourceVocab`` names another file, which must be the archive's own (F59)."""
    torch.save(["one"], tmp_path / "other.pt")

    assert len(make(sourceVocab="other.pt").source_vocab) == 1
    with pytest.raises(ModelLoadError, match=r"sourceVocab must be a file of the archive, got '\.\./x\.pt'"):
        make(sourceVocab="../x.pt")


def test_helpers_of_explanations_of_ones_own(make: Make) -> None:
    """Words by number, and attributions summed up per word."""
    handler = make()
    attributions = torch.tensor([[[1.0, 2.0], [0.0, 4.0], [-1.0, 1.0]]])

    assert handler.get_word_token([2, 1, "cat"]) == ["cat", "the", "cat"]
    assert handler.summarize_attributions(attributions).tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_the_misspelt_step_of_cleaning(make: Make) -> None:
    """``_remove_puncutation`` may be called and overridden, as in TorchServe."""
    handler = make()
    assert handler._remove_puncutation("a, b.") == "a b"

    handler._remove_puncutation = lambda text: text.replace("x", "")  # type: ignore[method-assign]
    assert handler.cleaned_words("xthe, cat") == ["the", ",", "cat"]
