"""Batches of texts in tokens, padded as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.nn.utils.rnn import pad_sequence

from modelserver_handlers.huggingface.checkpoint import Checkpoint, length_of

# Shorter rows are padded to this length without another call of the network.
_SHORT: Final = 32
Compute = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def groups_by_length(lengths: Sequence[int], short: int = _SHORT) -> list[list[int]]:
    """The places of rows that share a call: the longest of a group is at most twice as long as the others."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    groups: list[list[int]] = []
    for place in order:
        if groups and lengths[groups[-1][0]] <= max(short, 2 * lengths[place]):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


class TokenBatches:
    """Turns texts, or pairs of texts, into tokens for a network.

    ``limit``: the most tokens of one; what is longer is cut.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, limit: int | None = None) -> None:
        self.tokenizer = checkpoint.load_tokenizer()
        self._device = checkpoint.device
        self._limit = limit or length_of(self.tokenizer, config)
        self._padding = {"input_ids": self.tokenizer.pad_token_id or 0}

    @property
    def is_padded(self) -> bool:
        """Whether rows of different lengths can share a call."""
        return self.tokenizer.pad_token_id is not None

    def run(self, texts: Sequence[Any], compute: Compute) -> tuple[torch.Tensor, list[int]]:
        """The rows that ``compute`` returns for all texts, in their order, and their numbers of tokens."""
        cut = {} if self._limit is None else {"truncation": True, "max_length": self._limit}
        sides = list(map(list, zip(*texts, strict=True))) if isinstance(texts[0], tuple) else [list(texts)]
        encoded = self.tokenizer(*sides, **cut)
        counts = [len(ids) for ids in encoded["input_ids"]]
        outputs: list[Any] = [None] * len(counts)
        with torch.inference_mode():
            for group in groups_by_length(counts):
                rows = compute({name: self._padded(name, values, group) for name, values in encoded.items()})
                for place, row in zip(group, rows, strict=True):
                    outputs[place] = row
        return torch.stack(outputs), counts

    def _padded(self, name: str, values: list[list[int]], group: list[int]) -> torch.Tensor:
        rows = [torch.tensor(values[place]) for place in group]
        side = self.tokenizer.padding_side
        padded = pad_sequence(rows, True, self._padding.get(name, 0), padding_side=side)
        return padded.to(self._device)
