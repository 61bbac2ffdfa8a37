"""Texts from client input, cleaned and cut into words (reference 13.4, 14.4)."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelserver_handlers.arrays import is_tensor
from modelserver_handlers.errors import BadInput

_TAG_OR_ENTITY = re.compile(r"<[^<>]*>|&(?:[a-zA-Z0-9]+|#[0-9]{1,6}|#[xX][0-9a-fA-F]{1,6});")
_NO_WORD = re.compile(r"[^a-zA-Z0-9\s]")


def text_input(row: Any) -> str | list[int]:
    """The text of one row, or the token numbers that it holds instead.

    A row is ``{"data": ...}``, ``{"body": ...}``, ``{"b64": "..."}`` or the value itself: text, bytes of
    UTF-8, or a list of whole numbers. Raises BadInput.
    """
    if isinstance(row, Mapping):
        key, value = value_in(row, "text")
        return _decoded(from_base64(value)) if key == "b64" and isinstance(value, str) else text_input(value)
    if isinstance(row, str):
        return row
    if isinstance(row, (bytes, bytearray, memoryview)):
        return _decoded(bytes(row))
    if isinstance(row, list):
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in row):
            raise BadInput("a list must hold token numbers: whole numbers")
        return row
    raise BadInput(f"a text cannot be made of a {'null' if row is None else type(row).__name__}")


def value_in(row: Mapping[Any, Any], kind: str) -> tuple[str, Any]:
    """The first key of a row with a value, and that. Raises BadInput, for a missing ``kind``, without one."""
    for key in ("data", "body", "b64"):
        value = row.get(key)
        if is_tensor(value) or value:
            return key, value
    fields = ", ".join(repr(str(key)) for key in list(row)[:5]) or "none"
    raise BadInput(f"no {kind}: 'data', 'body' and 'b64' are missing or empty (fields sent: {fields})")


def _decoded(encoded: bytes) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"the text is not UTF-8: {error}") from None


def from_base64(text: str) -> bytes:
    """The bytes in a text under ``b64``. Raises BadInput."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the text under b64 is not base64") from None


def remove_html(text: str) -> str:
    """Without tags and entities, which are not replaced."""
    return _TAG_OR_ENTITY.sub("", text)


def remove_accents(text: str) -> str:
    """The text in ASCII: letters lose their accents, characters without an ASCII form are removed."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def remove_punctuation(text: str) -> str:
    """Letters, digits and white space only; words around what is removed are joined, as in TorchServe."""
    return _NO_WORD.sub("", text)


def features(words: list[str], longest: int) -> list[tuple[int, int]]:
    """The runs of up to ``longest`` words, shortest first: positions of the first word and of the end."""
    count = len(words)
    return [
        (start, start + length) for length in range(1, longest + 1) for start in range(count - length + 1)
    ]


_PRONOUNS = ("i", "you", "he", "she", "it", "we", "they")
_NEGATED = "are could did does do had has have is might must need ought should was were would"
_IS = (
    "he she it that there here how what when where who why everyone someone somebody everything nothing"
    " something"
)
_MODALS = ("could", "should", "would", "must", "might")

CONTRACTION_MAP: dict[str, str] = {
    **{f"{verb}n't": f"{verb} not" for verb in _NEGATED.split()},
    **{f"{verb}n't've": f"{verb} not have" for verb in _MODALS},
    **{f"{word}'ve": f"{word} have" for word in (*_MODALS, "i", "you", "we", "they", "what", "who", "to")},
    **{f"{word}'s": f"{word} is" for word in _IS.split()},
    **{f"{word}'ll": f"{word} will" for word in (*_PRONOUNS, "that", "there", "what", "who", "this")},
    **{f"{word}'ll've": f"{word} will have" for word in _PRONOUNS},
    **{f"{word}'d": f"{word} would" for word in (*_PRONOUNS, "that", "there", "who", "how")},
    **{f"{word}'d've": f"{word} would have" for word in _PRONOUNS},
    **{f"{word}'re": f"{word} are" for word in ("you", "we", "they", "what", "who", "there")},
    "i'm": "i am",
    "let's": "let us",
    "ma'am": "madam",
    "can't": "cannot",
    "can't've": "cannot have",
    "won't": "will not",
    "won't've": "will not have",
    "shan't": "shall not",
    "ain't": "is not",
    "mayn't": "may not",
    "y'all": "you all",
    "y'all're": "you all are",
    "'cause": "because",
    "o'clock": "of the clock",
    "how'd'y": "how do you",
    "'tis": "it is",
    "'twas": "it was",
}
"""A contraction to its words; apostrophes are straight."""

_LONGEST_FIRST = sorted(CONTRACTION_MAP, key=len, reverse=True)
_CONTRACTION = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, _LONGEST_FIRST))})(?!\w)", re.IGNORECASE)


def expand_contractions(text: str) -> str:
    """``text`` with its contractions written out; a capital first letter is kept."""
    return _CONTRACTION.sub(
        lambda match: _expanded(match[0]), text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )


def _expanded(contraction: str) -> str:
    words = CONTRACTION_MAP[contraction.lower()]
    return words.capitalize() if contraction[0].isupper() else words


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
