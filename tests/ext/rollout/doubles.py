"""Versions whose workers are ready, and whose pools answer, when the test says so."""

from collections import deque
from types import SimpleNamespace
from typing import Any

from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import Answer, Row
from modelserver.errors import ServiceUnavailable


class Pool:
    """Keeps what it is given until the test answers it."""

    def __init__(self, workers: int = 1, batch_size: int = 8) -> None:
        self.workers: list[Any] = [SimpleNamespace(is_ready=True) for _ in range(workers)]
        self.queue = SimpleNamespace(requests=0, batch_size=batch_size)
        self.admission = SimpleNamespace(closing=False)
        self.affinity = None
        self.submitted: deque[Request] = deque()
        self.refuses = False

    @property
    def ready(self) -> bool:
        return any(worker.is_ready for worker in self.workers)

    def submit(self, request: Request) -> None:
        if self.refuses:
            raise ServiceUnavailable("no")
        request.batch_id, request.batch_size = "b", len(request.rows)
        self.submitted.append(request)

    def fail_workers(self) -> None:
        for worker in self.workers:
            worker.is_ready = False

    def answer(self, *contents: bytes, status: int = 200) -> None:
        request = self.submitted.popleft()
        every = list(contents) if len(contents) > 1 else list(contents) * len(request.rows)
        answers = [Answer(len(each), status, failed=status != 200) for each in every]
        request.deliver(0, list(zip(answers, every, strict=True)))


class Version:
    def __init__(self, version: str, pool: Pool | None = None) -> None:
        self.name, self.version = "m", version
        self.pool = pool or Pool()
        self.splits = self.splits_tensors = True
        self.sequence_headers = None


def request(body=b"x", rows=1, *, now=0.0, key=None, kind=0):
    return Request("r", [Row("r", len(body), kind)] * rows, [body] * rows, now, key=key)


def answered(content: bytes = b"1", status: int = 200, **more) -> Request:
    made = request(**more)
    answer = Answer(len(content), status, failed=status != 200)
    made.deliver(0, [(answer, content)] * len(made.rows))
    return made
