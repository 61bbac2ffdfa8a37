"""Words of a text (reference 13.4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BREAK = re.compile(r"<br />")
_SEPARATORS = re.compile(r'"|[;:]')
_PUNCTUATION = re.compile(r"(['.,()!?])")


def get_tokenizer(tokenizer: Any, language: str = "en") -> Any:
    """A function from a text to its words: ``str.split`` for None, a normalising one for "basic_english".

    A callable is returned as it is. Raises ValueError for any other name, and for basic_english in another
    language.
    """
    if tokenizer is None:
        return str.split
    if callable(tokenizer):
        return tokenizer
    if tokenizer != "basic_english":
        raise ValueError(f'the tokenizers are None, "basic_english" and callables, not {tokenizer!r}')
    if language != "en":
        raise ValueError("Basic normalization is only available for English (en)")
    return basic_english


def basic_english(text: str) -> list[str]:
    """Lower-case words and punctuation marks; quotation marks, colons and semicolons are left out."""
    spaced = _SEPARATORS.sub(lambda match: "" if match[0] == '"' else " ", _BREAK.sub(" ", text.lower()))
    return _PUNCTUATION.sub(r" \1 ", spaced).split()


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """The words, then all sequences of 2, 3, ... ``ngrams`` neighbouring words, joined by blanks."""
    yield from token_list
    for size in range(2, ngrams + 1):
        for start in range(len(token_list) - size + 1):
            yield " ".join(token_list[start : start + size])
