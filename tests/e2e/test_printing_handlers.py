"""Several handlers that print without end, beside one that prints little (F44)."""

import contextlib
import statistics
import threading
import time

import httpx
import psutil
import pytest
from tests.e2e.serving import archived, wait_until

from modelserver.engine.pools.output import LINES_A_SECOND

# The request names what it does without end; "say" prints one line and ends.
CHATTER = """
import itertools, os

def handle(data, context):
    if data is None:
        return None
    what, _, more = bytes(data[0]["body"]).decode().partition(" ")
    if what == "say":
        print(f"said {more}.", flush=True)
        return [more]
    for number in itertools.count():
        if what == "lines":
            os.write(1, b"a line\\n" * 1000)
            os.write(2, b"an error\\n" * 1000)
        elif what == "metrics":
            metric = f"[METRICS]N{number}.Count:1|#K:{number}|#type:COUNTER|#hostname:h,1700000000\\n"
            os.write(1, metric.encode() * 100)
            os.write(2, b"no end of line " * 1000)
"""
MIB = 1 << 20


@pytest.fixture
def server(start_server, tmp_path):
    """Three models with the same handler; the first two can run without end."""
    store = tmp_path / "own-store"
    archive = archived(store, "chatter", CHATTER)
    started = start_server(model_store=store)
    for name in ("first", "second", "quiet"):
        started.registered(archive.name, model_name=name, response_timeout=60)
    return started


@contextlib.contextmanager
def going_on(server, first, second):
    """Both models run; in the end their workers are killed."""

    def tell(name, what):
        with contextlib.suppress(httpx.HTTPError):
            server.predict(name, what.encode(), timeout=60)

    for name in ("first", "second"):
        server.wait_ready(name)
    threads = [threading.Thread(target=tell, args=each) for each in (("first", first), ("second", second))]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: server.metric("modelserver_batches_in_flight") == 2, "both have begun")
        yield
    finally:
        for name in ("first", "second"):
            for worker in server.describe(name)["workers"]:
                psutil.Process(worker["pid"]).kill()
        for thread in threads:
            thread.join()


def waits(server, seconds, mark):
    """Seconds that each request of the quiet model took, one after the other."""
    durations = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        token = f"{mark}{len(durations)}"
        assert server.predict("quiet", f"say {token}".encode()).text == token
        durations.append(time.monotonic() - began)
    return durations


@pytest.mark.slow  # compares some seconds of both
@pytest.mark.alone
def test_printing_is_fair(server):
    """Two models that print without end hold up a third hardly more than two that compute without end, and
    what that one prints is not dropped; memory and log stay bounded.
    """
    process = psutil.Process(server.pid)
    with going_on(server, "compute", "compute"):
        beside_computing = waits(server, 1.5, "c")
    with going_on(server, "lines", "metrics"):
        began = time.monotonic()
        time.sleep(0.5)
        before = process.memory_info().rss
        beside_printing = waits(server, 3.0, "p")
        grown = process.memory_info().rss - before
        printed = time.monotonic() - began
    log = wait_until(
        lambda: text if "lines were dropped" in (text := server.home.log("model_log.log")) else "",
        "it is told what was dropped",
    )

    assert statistics.median(beside_printing) < 3 * statistics.median(beside_computing)
    assert max(beside_printing) < 1
    assert grown < 16 * MIB
    assert log.count("\n") < 4 * LINES_A_SECOND * (printed + 2)
    lines = [f"said p{number}." for number in range(len(beside_printing))]
    assert [line for line in lines if line not in log] == []
