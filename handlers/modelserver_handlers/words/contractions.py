"""English contractions and what they stand for, in lower case (reference 14.4)."""

from __future__ import annotations

import re

_PRONOUNS = ("i", "you", "he", "she", "it", "we", "they")
_NEGATED = (
    *("are", "could", "did", "does", "do", "had", "has", "have", "is", "might", "must", "need", "ought"),
    *("should", "was", "were", "would"),
)
_IS = (
    *("he", "she", "it", "that", "there", "here", "how", "what", "when", "where", "who", "why"),
    *("everyone", "someone", "somebody", "everything", "nothing", "something"),
)
_MODALS = ("could", "should", "would", "must", "might")

CONTRACTION_MAP: dict[str, str] = {
    **{f"{verb}n't": f"{verb} not" for verb in _NEGATED},
    **{f"{verb}n't've": f"{verb} not have" for verb in _MODALS},
    **{f"{word}'ve": f"{word} have" for word in (*_MODALS, "i", "you", "we", "they", "what", "who", "to")},
    **{f"{word}'s": f"{word} is" for word in _IS},
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
