"""Texts of several generations at once, one list per step (reference 13, ``hf_batch_streamer``).

Importing this does not import transformers.
"""

from __future__ import annotations

from typing import Any


class TextIteratorStreamerBatch:
    """The ``streamer`` for ``generate`` of transformers; iterating gives ``[{"text": ...}, ...]``.

    Unlike TorchServe's, it does not end with the first text: finished texts are empty while others continue.
    Raises ImportError without transformers.

    Args:
        tokenizer: turns tokens into text.
        batch_size: number of texts.
        skip_prompt: leave the prompt out.
        timeout: seconds that iterating waits for a text; None waits forever.
        decode_kwargs: for the tokenizer's ``decode``.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        from transformers.generation.streamers import TextIteratorStreamer  # noqa: PLC0415 - see above

        self.batch_size = batch_size
        self.streamers = [
            TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)
        ]
        self.streamer_iterators = [iter(streamer) for streamer in self.streamers]
        self._ended = [False] * batch_size

    def put(self, value: Any) -> None:
        """Adds tokens, a row or a number for each text. Raises ValueError for another number of texts."""
        if value.shape[0] != self.batch_size:
            raise ValueError(
                f"TextIteratorStreamerBatch batch size is set to {self.batch_size} but got input tensor of "
                f"shape {value.shape}"
            )
        for index, streamer in enumerate(self.streamers):
            streamer.put(value[index : index + 1])

    def end(self) -> None:
        """No more tokens come."""
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> TextIteratorStreamerBatch:
        return self

    def __next__(self) -> list[dict[str, str]]:
        texts = [self._next(index) for index in range(self.batch_size)]
        if all(self._ended):
            raise StopIteration
        return [{"text": text} for text in texts]

    def _next(self, index: int) -> str:
        text = None if self._ended[index] else next(self.streamer_iterators[index], None)
        self._ended[index] = text is None
        return text or ""
