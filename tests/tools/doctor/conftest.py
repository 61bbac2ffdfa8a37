from types import SimpleNamespace

import pytest

from modelserver.testing.answer import Answer
from modelserver.tools.doctor.patient import BatchOutcome, Readings
from modelserver.tools.doctor.probing import Called
from modelserver.tools.doctor.samples import JSON, InputRow


def answer(value, status=200, ms=1.0):
    import orjson

    return Answer(status, {"server-timing": f"queue;dur=0.1, inference;dur={ms}"}, orjson.dumps(value))


class Model:
    """Stands for a patient. ``handler`` gets the bodies of a batch; an exception is a status for all.

    ``ms`` is the time of a batch by its size, ``ends`` whether the worker does with these bodies.
    """

    def __init__(self, handler):
        self.handler = handler
        self.calls = []
        self.ms = lambda size: 1.0
        self.ends = lambda bodies: False
        self.seen = []
        self.looks = lambda calls: Readings(1 << 24, 2, 0)
        self.blocks = lambda calls: 1000
        self.client = SimpleNamespace(model=SimpleNamespace(sequence_headers=None))

    def rows(self, samples, count):
        return [samples[number % len(samples)] for number in range(count)]

    def readings(self):
        return self.looks(len(self.calls))

    def ask(self, rows):
        bodies = [row.body for row in rows]
        self.seen.append(bodies)
        if self.ends(bodies):
            return BatchOutcome([answer({"message": "Worker died."}, 500)] * len(rows), [], "it ended")
        known = len(self.calls)
        outputs = self._call(bodies)
        answers = [self._answer(each, len(rows)) for each in outputs]
        return BatchOutcome(answers, self.calls[known:])

    def _call(self, bodies):
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

    def _answer(self, output, size):
        if isinstance(output, ValueError):
            return answer({"message": f"Prediction failed: {output} (h.py, line 3, in handle)"}, 503)
        return answer(output, ms=self.ms(size))


def samples(*bodies):
    return [InputRow(f"{index}.json", body, JSON) for index, body in enumerate(bodies)]


@pytest.fixture
def rows():
    return samples(b"1", b"2")
