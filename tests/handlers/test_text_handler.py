"""The base of handlers of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.handlers.conftest import MakeClassifier, alone

from modelserver_handlers.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path


def test_unknown_words_are_left_out_without_a_number_for_them(
    make_classifier: MakeClassifier, begin: Any
) -> None:
    """A vocabulary without ``<unk>`` knows some words and no others."""
    handler = make_classifier(words={"cat": 4, "the": 2})
    begin(handler.context)

    (answer,) = handler.handle(["the grey cat"], handler.context)

    assert list(answer.values()) == pytest.approx(alone(handler, [2, 4]), abs=1e-5)


def test_the_manifest_names_the_vocabulary(make_classifier: MakeClassifier, tmp_path: Path) -> None:
    """``sourceVocab`` names another file, which must be the archive's own (F59)."""
    torch.save(["one"], tmp_path / "other.pt")

    assert len(make_classifier(sourceVocab="other.pt").source_vocab) == 1
    with pytest.raises(ModelLoadError, match=r"sourceVocab must be a file of the archive, got '\.\./x\.pt'"):
        make_classifier(sourceVocab="../x.pt")


def test_helpers_of_explanations_are_there(make_classifier: MakeClassifier) -> None:
    """Words by number, and attributions summed up per word."""
    handler = make_classifier()
    attributions = torch.tensor([[[1.0, 2.0], [0.0, 4.0], [-1.0, 1.0]]])

    assert handler.get_word_token([2, 1, "cat"]) == ["cat", "the", "cat"]
    assert handler.summarize_attributions(attributions).tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_the_misspelt_step_can_be_overridden(make_classifier: MakeClassifier) -> None:
    """``_remove_puncutation`` may be called and overridden, as in TorchServe."""
    handler = make_classifier()
    assert handler._remove_puncutation("a, b.") == "a b"

    handler._remove_puncutation = lambda text: text.replace("x", "")  # type: ignore[method-assign]
    assert handler.cleaned_words("xthe, cat") == ["the", ",", "cat"]
