"""The clients of the benchmarks."""

from __future__ import annotations

import json
import math
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from benchmarks.load import Load, counted, percentile, read_wrk, run_asyncio, run_wrk

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(BaseHTTPRequestHandler):
    """Answers a POST with the status that its path asks for; /close hangs up instead."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/close":
            self.close_connection = True
            return
        status = int(self.path.rpartition("/")[2])
        self.send_response(status)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"2\r\nok\r\n")
            self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", "2")
        if status >= 400:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Keeps silent."""


class Server(ThreadingHTTPServer):
    """Clients that leave are expected."""

    def handle_error(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The address of a small server."""
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def load(url: str, connections: int = 2) -> Load:
    return Load(url, b"x" * 64, "application/octet-stream", connections, seconds=0.2)


@pytest.mark.parametrize("path", ["200", "chunked/200"])
def test_our_client_counts_answers(base: str, path: str) -> None:
    """Answers of 2xx are counted, timed and free of failures, also those that come in chunks."""
    outcome = run_asyncio(load(f"{base}/{path}"))

    assert outcome.failures == {}
    assert outcome.requests > 2
    assert outcome.rate > 0
    assert 0 < outcome.p50_ms <= outcome.p99_ms


def test_our_client_counts_refusals(base: str) -> None:
    """Another status is a failure named after it, also when the server hangs up after each."""
    outcome = run_asyncio(load(f"{base}/503"))

    assert outcome.failures["status 503"] > 2
    assert outcome.failures["nothing answered"] == 1
    assert outcome.requests == 0


def test_our_client_counts_broken_connections(base: str) -> None:
    """A connection that ends without an answer is a failure."""
    assert run_asyncio(load(f"{base}/close")).failures["read"] > 0


def test_our_client_counts_refused_connections() -> None:
    """A server that is not there is a failure, not an exception."""
    outcome = run_asyncio(load("http://127.0.0.1:9/200", connections=1))

    assert outcome.failures["connect"] > 0


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize(("path", "failed"), [("200", False), ("503", True)])
def test_wrk_counts_the_same(base: str, path: str, failed: bool) -> None:
    """wrk's outcome has requests, and failures exactly where the server refuses."""
    outcome = run_wrk(load(f"{base}/{path}"))

    assert outcome.client == "wrk"
    assert outcome.requests > 2
    assert bool(outcome.failures) is failed
    assert failed is ("status" in outcome.failures)


def test_the_line_of_wrk_is_read() -> None:
    """Rates and milliseconds come from the line; failures of 0 are left out."""
    said = {"requests": 10, "seconds": 2.0, "p50_us": 1500, "p99_us": 3000, "max_us": 4000}
    line = json.dumps(said | {"failures": {"status": 0, "read": 3}})
    outcome = read_wrk(f"Running...\n\noutcome {line}\n", "", cpu=0.5)

    assert (outcome.rate, outcome.p50_ms, outcome.p99_ms) == (5.0, 1.5, 3.0)
    assert outcome.failures == {"read": 3}


def test_wrk_without_an_outcome_is_an_error() -> None:
    """What wrk says instead is in the message."""
    with pytest.raises(RuntimeError, match="unable to connect"):
        read_wrk("", "unable to connect", cpu=0.0)


def test_whole_batches_are_counted_by_the_time_of_whole_batches() -> None:
    """Answers after the settling time are divided by the time since the last one before it."""
    ends = [0.9, 1.0, 1.9, 2.0, 2.9, 3.0]

    assert counted(ends, settle=1.2) == (slice(2, 6), 2.0)
    assert counted(ends, settle=0.0) == (slice(0, 6), 3.0)
    assert counted([], settle=1.0) == (slice(0, 0), 0.0)


def test_percentiles_are_values_that_were_seen() -> None:
    """The nearest rank is taken; nothing has none."""
    values = [float(value) for value in range(1, 101)]

    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)
    assert math.isnan(percentile([], 50))
