"""A model that answers as a test says."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.testing.answer import Answer
from modelserver.tools.doctor.patient import BatchOutcome, Readings
from modelserver.tools.doctor.probing import Called
from modelserver.tools.doctor.samples import JSON, InputRow

Handler = Callable[[list[bytes]], list[Any]]


def answer(value: Any, status: int = 200, ms: float = 1.0) -> Answer:
    import orjson

    return Answer(status, {"server-timing": f"queue;dur=0.1, inference;dur={ms}"}, orjson.dumps(value))


class Model:
    """Stands for a patient. ``handler`` gets the bodies of a batch; an exception is a status for all.

    ``ms`` is the time of a batch by its size, ``ends`` whether the worker does with these bodies.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.calls: list[Called] = []
        self.ms: Callable[[int], float] = lambda size: 1.0
        self.ends: Callable[[list[bytes]], bool] = lambda bodies: False
        self.seen: list[list[bytes]] = []
        self.looks: Callable[[int], Readings] = lambda calls: Readings(1 << 24, 2, 0)
        self.blocks: Callable[[int], int] = lambda calls: 1000
        self.client: Any = SimpleNamespace(model=SimpleNamespace(sequence_headers=None))

    def rows(self, samples: Sequence[InputRow], count: int) -> list[InputRow]:
        return [samples[number % len(samples)] for number in range(count)]

    def readings(self) -> Readings:
        return self.looks(len(self.calls))

    def ask(self, rows: Sequence[InputRow]) -> BatchOutcome:
        bodies = [row.body for row in rows]
        self.seen.append(bodies)
        if self.ends(bodies):
            return BatchOutcome([answer({"message": "Worker died."}, 500)] * len(rows), [], "it ended")
        known = len(self.calls)
        outputs = self._call(bodies)
        answers = [self._answer(each, len(rows)) for each in outputs]
        return BatchOutcome(answers, self.calls[known:])

    def _call(self, bodies: list[bytes]) -> list[Any]:
        """Calls the handler as a worker does: halves are tried if the whole fails."""
        number = len(self.calls) + 1
        blocks = None if number % 25 else self.blocks(number)
        try:
            outputs = self.handler(bodies)
            error = ""
        except ValueError as failure:
            outputs, error = [], str(failure)
        self.calls.append(Called(len(bodies), -1 if error else len(outputs), error, blocks=blocks))
        if not error and len(outputs) == len(bodies):
            return outputs
        if len(bodies) == 1:
            return [ValueError(error or "mismatched")]
        half = len(bodies) // 2
        return self._call(bodies[:half]) + self._call(bodies[half:])

    def _answer(self, output: Any, size: int) -> Answer:
        if isinstance(output, ValueError):
            return answer({"message": f"Prediction failed: {output} (h.py, line 3, in handle)"}, 503)
        return answer(output, ms=self.ms(size))


def samples(*bodies: bytes) -> list[InputRow]:
    return [InputRow(f"{index}.json", body, JSON) for index, body in enumerate(bodies)]


@pytest.fixture
def rows():
    return samples(b"1", b"2")
