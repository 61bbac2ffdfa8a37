"""One client that sends one request after another while nobody else does."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from benchmarks.load import percentile
from benchmarks.servers import HOST, Running

WARMUP = 10  # requests
_INFERENCE = re.compile(r"\binference;dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Lone:
    """What a sequential client sees, in ms; ``added_ms`` is its median less the handler's.

    A failure makes the figure void.
    """

    handler: str
    client_p50_ms: float
    handler_p50_ms: float
    failures: int

    @property
    def added_ms(self) -> float | None:
        """What the server, the queue and the sockets add; None if void."""
        return None if self.failures else self.client_p50_ms - self.handler_p50_ms


def measure_lone(server: Running, name: str, body: bytes, content_type: str, requests: int) -> Lone:
    """Sends one request after another over one connection. The first ``WARMUP`` do not count."""
    seen: list[float] = []
    handler: list[float] = []
    failures = 0
    connection = HTTPConnection(HOST, server.port, timeout=60)
    for number in range(WARMUP + requests):
        try:
            waited, inside = _ask(connection, f"/predictions/{name}", body, content_type)
        except (OSError, HTTPException, ValueError):
            connection.close()
            failures += 1
            continue
        if number >= WARMUP:
            seen.append(waited)
            handler.append(inside)
    connection.close()
    return Lone(name, percentile(seen, 50), percentile(handler, 50), failures)


def handler_ms(server_timing: str | None) -> float:
    """The handler's own time in a server-timing header. Raises ValueError where it does not say."""
    match = _INFERENCE.search(server_timing or "")
    if match is None:
        raise ValueError(f"no inference;dur in server-timing: {server_timing}")
    return float(match.group(1))


def _ask(connection: HTTPConnection, target: str, body: bytes, content_type: str) -> tuple[float, float]:
    """Milliseconds until the whole response was read, and the handler's own. Raises ValueError if not 200."""
    began = time.perf_counter()
    connection.request("POST", target, body, {"Content-Type": content_type})
    answer = connection.getresponse()
    answer.read()
    waited = (time.perf_counter() - began) * 1e3
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    return waited, handler_ms(answer.getheader("server-timing"))
