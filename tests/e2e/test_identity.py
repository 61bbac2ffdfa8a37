"""Whose answer is whose: ten thousand requests at once (fault 23)."""

import asyncio
import resource

import pytest

REQUESTS = 10_000


@pytest.fixture
def connections():
    """How many connections this process may open, at most one per request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = REQUESTS + 500
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    yield min(REQUESTS, allowed - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def ask(port, numbers, barrier):
    """Sends these requests over one connection, when all are connected; returns the mismatches."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await barrier()
    wrong = []
    for number in numbers:
        token = f"token-{number}-{'x' * (number % 97)}".encode()
        body = b'{"instances": ["%b"]}' % token if number % 2 else token
        path = b"/v1/models/rows:predict" if number % 2 else b"/predictions/rows"
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nx-request-id: id-%d\r\n\r\n"
        writer.write(head % (path, len(body), number) + body)
        head, _, _ = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        answer = await reader.readexactly(int(fields[b"content-length"]))
        expected = b'"predictions":["%b"]}' % token if number % 2 else token
        same = answer.endswith(expected) if number % 2 else answer == expected
        if not (head.startswith(b"HTTP/1.1 200") and same and fields[b"x-request-id"] == b"id-%d" % number):
            wrong.append((number, head[:40], answer[:200]))
    writer.close()
    return wrong


@pytest.mark.slow
async def test_ten_thousand_requests_get_their_own_answers(start_server, connections):
    """Of 10 000 concurrent requests each gets exactly its own answer, and none is left waiting (F23)."""
    server = start_server(job_queue_size=REQUESTS + 1)
    server.registered("rows.mar", batch_size=32, initial_workers=2)
    waiting, open_gate = 0, asyncio.Event()
    limit = asyncio.Semaphore(200)

    async def barrier():
        nonlocal waiting
        waiting += 1
        limit.release()
        if waiting == connections:
            open_gate.set()
        await open_gate.wait()

    async def client(first):
        await limit.acquire()
        return await ask(server.port, range(first, REQUESTS, connections), barrier)

    wrong = [item for result in await asyncio.gather(*map(client, range(connections))) for item in result]

    assert wrong == []
    for gauge in ("queue_requests", "queue_instances", "batches_in_flight"):
        assert server.metric(f"modelserver_{gauge}") == 0
    assert server.metric("modelserver_batch_size_sum") == REQUESTS
