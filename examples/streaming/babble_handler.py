"""Generates a text word by word, and sends each word as soon as it is ready."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from modelserver_handlers.streaming import send_intermediate_predict_response

MOST_WORDS = 1000


class Babble:
    """Answers `{"words": 20, "seed": 1, "first": "the"}`, all keys optional, with a streamed text.

    ``text.txt`` in the archive determines which word may follow which.
    """

    def initialize(self, context: Any) -> None:
        folder = Path(context.system_properties["model_dir"])
        words = (folder / "text.txt").read_text("utf-8").split()
        self.following: dict[str, list[str]] = defaultdict(list)
        for word, after in zip(words, words[1:] + words[:1], strict=True):
            self.following[word].append(after)

    def handle(self, data: list[Any], context: Any) -> list[str]:
        writers = [self.writer(idx, row, context) for idx, row in enumerate(data)]
        # One word for each request of the batch, until all are finished.
        while any(words := [next(writer, "") for writer in writers]):
            send_intermediate_predict_response(words, context.request_ids, "", 200, context)
        return ["\n" for _ in data]

    def writer(self, idx: int, row: Any, context: Any) -> Any:
        """The words of one request."""
        context.set_response_content_type(idx, "text/plain; charset=utf-8")
        request = row.get("body") or {}
        if not isinstance(request, dict) or not isinstance(count := request.get("words", 20), int):
            context.reject(idx, 'A JSON object is needed, such as {"words": 20}.')
            return
        chance = random.Random(request.get("seed", 0))
        word = request.get("first") or chance.choice(sorted(self.following))
        for _ in range(min(count, MOST_WORDS)):
            yield f"{word} "
            word = chance.choice(self.following.get(word) or sorted(self.following))
