"""A small network over JSON, 64 numbers to 128 to 10: a handler of an archive, and everybody's model."""

from __future__ import annotations

import json
from typing import Any

import torch


class Mlp:
    """Seeded random weights; one thread, for a network of this size gains nothing from more."""

    @classmethod
    def loaded(cls) -> Mlp:
        """One that is ready, outside of a server."""
        mlp = cls()
        mlp.initialize(None)
        return mlp

    def initialize(self, _context: Any) -> None:
        """Make the network."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        layers = (torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        self.network = torch.nn.Sequential(*layers).eval()
        self.initialized = True

    def handle(self, data: list[dict[str, Any]], _context: Any) -> list[Any]:
        """What a handler of TorchServe gets and gives: requests with a JSON body, an answer for each."""
        return self.answers([self.parse(row.get("body") or row.get("data")) for row in data])

    def parse(self, body: Any) -> list[list[float]]:
        """The rows of one request, decoded before or not."""
        decoded = json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body
        rows: list[list[float]] = decoded["instances"]
        return rows

    def answers(self, requests: list[list[list[float]]]) -> list[dict[str, Any]]:
        """One answer per request: class and probabilities of each of its rows."""
        rows = [row for request in requests for row in request]
        with torch.inference_mode():
            scores = torch.softmax(self.network(torch.tensor(rows, dtype=torch.float32)), 1)
            classes = scores.argmax(1).tolist()
        rows_out = iter([{"class": best, "probs": row} for best, row in zip(classes, scores.tolist())])  # noqa: B905
        return [{"predictions": [next(rows_out) for _ in request]} for request in requests]
