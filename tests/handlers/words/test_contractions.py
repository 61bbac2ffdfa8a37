"""English contractions written out."""

from __future__ import annotations

import pytest

from modelserver_handlers.words.contractions import CONTRACTION_MAP, expand_contractions


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("it isn't", "it is not"),
        ("I can't, you won't", "I cannot, you will not"),
        ("won't've", "will not have"),
        ("They'll say y'all're late", "They will say you all are late"),
        ("it’s", "it is"),
        ("the dog's bone", "the dog's bone"),
        ("'tis", "it is"),
    ],
)
def test_contractions_are_written_out(text: str, expanded: str) -> None:
    """The longest that fits is written out; what is none stays."""
    assert expand_contractions(text) == expanded


def test_expanding_is_done_once() -> None:
    """No expansion has another contraction in it."""
    assert [words for words in CONTRACTION_MAP.values() if expand_contractions(words) != words] == []
