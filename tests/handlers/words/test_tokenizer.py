"""Words and runs of words."""

from __future__ import annotations

import pytest

from modelserver_handlers.words.tokenizer import get_tokenizer, ngrams_iterator


def test_basic_english_is_torchserves() -> None:
    """Lower case, punctuation apart, quotation marks and colons gone: TorchServe's words for the text."""
    text = 'You can now, install <br /> TorchText; using pip! it\'s (a) "b". x:y?'
    words = "you can now , install torchtext using pip ! it ' s ( a ) b . x y ?"

    assert get_tokenizer("basic_english")(text) == words.split()


def test_other_tokenizers_are_refused() -> None:
    """None splits at blanks, a callable is itself, any other name or language is refused."""
    assert get_tokenizer(None)("a B  c") == ["a", "B", "c"]
    assert get_tokenizer(len) is len
    with pytest.raises(ValueError, match="spacy"):
        get_tokenizer("spacy")
    with pytest.raises(ValueError, match="only available for English"):
        get_tokenizer("basic_english", "de")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, ["here", "we", "are"]),
        (2, ["here", "we", "are", "here we", "we are"]),
        (3, ["here", "we", "are", "here we", "we are", "here we are"]),
    ],
)
def test_ngrams_follow_the_words(size: int, expected: list[str]) -> None:
    """The words first, then runs of two, then of three."""
    assert list(ngrams_iterator(["here", "we", "are"], size)) == expected
