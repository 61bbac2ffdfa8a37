"""Tokens to numbers: the vocabulary that a text model was trained with (reference 14.4).

A file written by ``torch.save`` that loads without running code: a mapping of tokens to numbers, a list of
tokens, or what :meth:`Vocabulary.save` writes. A pickled Vocab of torchtext, which is no longer maintained,
is not supported: unlike in TorchServe, unpickling is never allowed to run code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.weights import read_saved

VOCABULARY_FILE = "source_vocab.pt"
_UNKNOWN = ("<unk>", "<UNK>", "[UNK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``ids``: token to number. ``default``: the number of all other tokens, None if they have none."""

    ids: Mapping[str, int]
    default: int | None = None

    @classmethod
    def of_tokens(cls, tokens: Sequence[str], default: int | None = None) -> Vocabulary:
        """Numbers by position; a repeated token keeps its first."""
        ids: dict[str, int] = {}
        for number, token in enumerate(tokens):
            ids.setdefault(token, number)
        return cls(ids, _default(ids) if default is None else default)

    def numbers(self, tokens: Sequence[str]) -> list[int | None]:
        """One number per token, None if there is none."""
        return [self.ids.get(token, self.default) for token in tokens]

    def __getitem__(self, token: str) -> int:
        """A token's number. Raises KeyError for an unknown one without a default."""
        return self.ids[token] if self.default is None else self.ids.get(token, self.default)

    def __call__(self, tokens: Iterable[str]) -> list[int]:
        """A number per token, as torchtext's Vocab does. Raises KeyError as indexing does."""
        return [self[token] for token in tokens]

    def __contains__(self, token: object) -> bool:
        return token in self.ids

    def __len__(self) -> int:
        return len(self.ids)

    def get_stoi(self) -> dict[str, int]:
        """Token to number."""
        return dict(self.ids)

    def get_itos(self) -> list[str]:
        """Tokens by number; "" for unused numbers."""
        tokens = [""] * (self.highest + 1)
        for token, number in self.ids.items():
            tokens[number] = token
        return tokens

    @property
    def highest(self) -> int:
        """The highest number, -1 if there is none."""
        return max(self.ids.values(), default=-1)

    def save(self, path: Path) -> None:
        """Write it as a file that :func:`load_vocabulary` reads."""
        torch.save({"tokens": dict(self.ids), "default_index": self.default}, path)


def load_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in ``path``. Raises ModelLoadError naming the file, the problem, and the solution."""
    content = read_saved(path, _refusal)
    vocabulary = _read(content)
    if vocabulary is None:
        raise ModelLoadError(
            f"{path.name} holds no vocabulary: a mapping of tokens to distinct whole numbers of at least 0,"
            " or a list of tokens, is needed"
        )
    return vocabulary


def _refusal(name: str, reason: str) -> str:
    why = "it holds more than text and numbers"
    if "torchtext" in reason:
        why = "it is a Vocab of torchtext"
    return (
        f"{name} was not loaded, because {why} and unpickling it could run code. Where it was made, write"
        " its tokens instead: torch.save({'tokens': vocab.get_stoi(), 'default_index':"
        f" vocab.get_default_index()}}, '{name}')"
    )


def _read(content: Any) -> Vocabulary | None:
    if isinstance(content, Mapping) and set(content) == {"tokens", "default_index"}:
        default = content["default_index"]
        inner = _read_tokens(content["tokens"])
        if inner is None or not (default is None or _is_number(default)):
            return None
        return Vocabulary(inner, default)
    ids = _read_tokens(content)
    return None if ids is None else Vocabulary(ids, _default(ids))


def _read_tokens(content: Any) -> Mapping[str, int] | None:
    if isinstance(content, (list, tuple)):
        return Vocabulary.of_tokens(content).ids if all(isinstance(token, str) for token in content) else None
    if not isinstance(content, Mapping) or not all(isinstance(token, str) for token in content):
        return None
    numbers = list(content.values())
    if not all(map(_is_number, numbers)) or len(set(numbers)) != len(numbers):
        return None
    return dict(content)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _default(ids: Mapping[str, int]) -> int | None:
    return next((ids[token] for token in _UNKNOWN if token in ids), None)
