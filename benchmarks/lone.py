"""One client that sends one request after another while nobody else does."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from benchmarks.load import percentile
from benchmarks.servers import HOST
from benchmarks.works import Question

WARMUP = 10  # requests
_INFERENCE = re.compile(r"\binference;dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Lone:
    """What a sequential client sees, in ms; ``added_ms`` is its median less the handler's.

    A failure makes the figure void.
    """

    client_p50_ms: float
    handler_p50_ms: float
    failures: int

    @property
    def added_ms(self) -> float | None:
        """What the server, the queue and the sockets add; None if void."""
        return None if self.failures else self.client_p50_ms - self.handler_p50_ms


def measure_lone(port: int, question: Question, requests: int) -> Lone:
    """Sends one request after another over one connection. The first ``WARMUP`` do not count."""
    times: list[tuple[float, float]] = []
    failures = 0
    connection = HTTPConnection(HOST, port, timeout=60)
    for _ in range(WARMUP + requests):
        try:
            times.append(_ask(connection, question))
        except (OSError, HTTPException, ValueError):  # noqa: PERF203 - one may fail and the next not
            connection.close()
            failures += 1
    connection.close()
    client, handler = (percentile([both[place] for both in times[WARMUP:]], 50) for place in (0, 1))
    return Lone(client, handler, failures)


def _ask(connection: HTTPConnection, question: Question) -> tuple[float, float]:
    """Milliseconds until the whole response was read, and the handler's own.

    Raises ValueError if it is not 200, or does not tell the handler's time.
    """
    began = time.perf_counter()
    connection.request("POST", question.path, question.body, question.headers)
    answer = connection.getresponse()
    answer.read()
    waited = (time.perf_counter() - began) * 1e3
    match = _INFERENCE.search(answer.getheader("server-timing", ""))
    if answer.status != 200 or match is None:
        raise ValueError(f"status {answer.status}, server-timing: {answer.getheader('server-timing')}")
    return waited, float(match[1])
