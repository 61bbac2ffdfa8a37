import asyncio
import contextlib
import re

import pytest
from tests.odd_servers import listening

from modelserver.tools.tune.client import LoadSpec, at_rate, closed_loop, post
from modelserver.tools.tune.figure import summed_up

TIMING = b"Server-Timing: queue;dur=1.500, inference;dur=7.250\r\n"


class Answering:
    """Answers every request after ``delay`` seconds; counts connections, and requests at once."""

    def __init__(self, status=200, delay=0.002, close=False, serial=False):
        self.status, self.delay, self.close = status, delay, close
        self.port = self.connections = self.inside = self.most = 0
        self.bodies = []
        self.lock = asyncio.Lock() if serial else contextlib.nullcontext()

    async def serve(self, reader, writer):
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            self.bodies.append(await reader.readexactly(int(length[1])))
            async with self.lock:
                await self.answer(writer)
            if self.close:
                break

    async def answer(self, writer):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(self.delay)
        self.inside -= 1
        batch = b"x-batch-id: b%d\r\nx-batch-size: 3\r\n" % (len(self.bodies) // 3)
        last = b"connection: close\r\n" if self.close else b""
        writer.write(b"HTTP/1.1 %d OK\r\n" % self.status + batch + TIMING + last)
        writer.write(b"content-length: 2\r\n\r\no")
        await asyncio.sleep(0)
        writer.write(b"k")


@contextlib.asynccontextmanager
async def answering(**attributes):
    server = Answering(**attributes)
    async with listening(server.serve) as server.port:
        yield server


def load(server, *bodies, least=1, longest=0.0):
    requests = [post("/predictions/m", body, "text/plain") for body in bodies or (b"hello",)]
    return LoadSpec(requests, server.port, seconds=0.2, settle=0.05, least=least, longest=longest)


async def test_a_closed_loop_has_as_many_requests_at_once_as_clients():
    """Bodies are sent in turn; figures have the server's own account."""
    async with answering() as server:
        figure = summed_up(await closed_loop(load(server, b"one", b"\r\n\r\n"), 3), clients=3)

    assert (server.connections, server.most) == (3, 3)
    assert set(server.bodies) == {b"one", b"\r\n\r\n"}
    assert not figure.void
    assert figure.requests < len(server.bodies)
    assert (figure.queue_ms, figure.inference_ms, figure.mean_batch) == (1.5, 7.25, 3.0)
    assert figure.costs == {3: 7.25}


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_anything_but_2xx_voids_the_run(status):
    async with answering(status=status) as server:
        run = await closed_loop(load(server), 1)

    assert not run.answers
    assert set(run.failures) == {f"status {status}"}


async def test_a_closed_connection_is_opened_again():
    async with answering(close=True) as server:
        run = await closed_loop(load(server), 1)

    assert run.failures == {}
    assert server.connections >= len(run.answers) > 0
    assert set((await closed_loop(load(server), 1)).failures) == {"cannot connect"}


@pytest.mark.parametrize(("delay", "least", "longest"), [(0.15, 3, 10.0), (0.5, 1, 0.0)])
async def test_slow_answers_are_waited_for_up_to_a_bound(delay, least, longest):
    """The first one without it."""
    async with answering(delay=delay) as server:
        run = await closed_loop(load(server, least=least, longest=longest), 1)

    assert len(run.answers) >= least


async def test_at_a_rate_requests_do_not_wait_for_answers():
    async with answering(delay=0.1) as server:
        figure = summed_up(await at_rate(load(server, least=20, longest=30.0), 200.0), offered=200.0)

    assert not figure.void
    assert server.most > 5
    assert figure.requests <= len(server.bodies)


async def test_latency_at_a_rate_counts_from_when_a_request_was_due():
    """A server that takes one at a time, ever later, cannot hide it."""
    async with answering(serial=True, delay=0.02) as server:
        figure = summed_up(await at_rate(load(server, least=20, longest=30.0), 200.0), offered=200.0)

    assert server.most == 1
    assert figure.p99_ms > 5 * 20
