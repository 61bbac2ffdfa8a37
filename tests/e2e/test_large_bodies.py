"""Bodies and answers of megabytes, which travel between server and workers in shared memory."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.serving import wait_until

SIZE = 2_000_000


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(64) as executor:
        yield executor


def marked(number, size=SIZE):
    """A body like no other, in every 16 bytes of it."""
    return b"body %10d\n" % number * (size // 16)


def ask(server, name, number, size=SIZE):
    """Status of a prediction, and whether it is an echo of its own body."""
    body = marked(number, size)
    answer = server.predict(name, body, headers={"content-type": "application/octet-stream"})
    return answer.status_code, answer.content == body


def arenas(pid):
    """The shared memories that a server has open, each by two descriptors, and whether it maps any."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(descriptor))
    mapped = "memfd:modelserver" in Path(f"/proc/{pid}/maps").read_text()
    return sum("memfd:modelserver" in link for link in links) / 2, mapped


def test_each_gets_its_own(shared_server, pool):
    """64 bodies of 2 MB at the same time, in batches over two workers: each is answered with itself."""
    shared_server.registered("echo.mar", model_name="large", initial_workers=2, batch_size=4)

    answers = list(pool.map(lambda n: ask(shared_server, "large", n), range(64)))

    assert answers == [(200, True)] * 64
    assert arenas(shared_server.pid) == (2, False)
    shared_server.unregister("large")
    assert arenas(shared_server.pid) == (0, False)


def test_bodies_around_the_threshold_arrive_unchanged(shared_server):
    shared_server.registered("echo.mar", model_name="mixed")

    for size in (16, 131_056, 131_072, 131_088, 200_000, 1 << 20):
        assert ask(shared_server, "mixed", size, size) == (200, True)
    shared_server.unregister("mixed")


def test_only_the_batch_of_a_killed_worker_fails(shared_server, pool):
    """What the killed worker was computing fails once, all else is answered; its memory is freed (F39)."""
    shared_server.registered("echo.mar", model_name="mortal", batch_size=2)
    futures = [pool.submit(ask, shared_server, "mortal", n, 2_000_000) for n in range(60)]
    wait_until(lambda: sum(future.done() for future in futures) > 5, "the load is on")
    os.kill(shared_server.describe("mortal")["workers"][0]["pid"], 9)

    answers = [future.result(30) for future in futures]

    failed = [answer for answer in answers if answer != (200, True)]
    assert len(failed) <= 2
    assert {status for status, _ in failed} <= {500}
    assert ask(shared_server, "mortal", 99) == (200, True)
    assert arenas(shared_server.pid) == (1, False)
    shared_server.unregister("mortal")
