"""Texts as clients send them, and the words in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers.errors import BadInput
from modelserver_handlers.texts import (
    features,
    remove_accents,
    remove_html,
    remove_punctuation,
    text_input,
)
from modelserver_handlers.words.tokenizer import ngrams_iterator


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"data": "one"}, "one"),
        ({"body": bytearray(b"tw\xc3\xb6")}, "twö"),
        ({"data": "", "body": "three"}, "three"),
        ({"b64": "Zm91cg=="}, "four"),
        ({"data": {"b64": "Zml2ZQ=="}}, "five"),
        ("six", "six"),
        (b"seven", "seven"),
        ({"data": [3, 0, 1]}, [3, 0, 1]),
    ],
)
def test_forms_of_a_text_are_read(row: Any, text: Any) -> None:
    """Text, bytes, base64 and token numbers are taken, bare or under data and body."""
    assert text_input(row) == text


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({}, "no text: 'data', 'body' and 'b64' are missing or empty (fields sent: none)"),
        ({"target": 1, "body": ""}, "(fields sent: 'target', 'body')"),
        (b"\xff\xfe", "the text is not UTF-8"),
        ({"b64": "?"}, "the text under b64 is not base64"),
        ({"data": ["a", "b"]}, "a list must hold token numbers"),
        ({"data": [True]}, "a list must hold token numbers"),
        (None, "a text cannot be made of a null"),
        (1.5, "a text cannot be made of a float"),
    ],
)
def test_other_rows_are_refused(row: Any, fault: str) -> None:
    """Anything else is refused in words for the client (F8)."""
    with pytest.raises(BadInput) as refusal:
        text_input(row)

    assert fault in str(refusal.value)


def test_texts_are_cleaned() -> None:
    """Tags and entities go without a trace, accents are taken off, of the rest letters and digits stay."""
    assert remove_html('<p class="x">a &amp; b&#39;s</p><br/>c') == "a  bsc"
    assert remove_accents("naïve Ångström 日本") == "naive Angstrom "
    assert remove_punctuation("U.S.A., x_y 3.5 a-b!") == "USA xy 35 ab"


@given(st.lists(st.text("ab", min_size=1), max_size=8), st.integers(1, 4))
def test_features_are_all_runs(words: list[str], longest: int) -> None:
    """Each run of at most that many words is there once, short ones first."""
    result = features(words, longest)
    named = [" ".join(words[start:end]) for start, end in result]

    assert named == list(ngrams_iterator(words, longest))
    assert result == sorted(set(result), key=lambda run: (run[1] - run[0], run[0]))
    assert set(result) == {
        (start, end)
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if end - start <= longest
    }
