"""How long workers may keep still, and take to leave: settings that only a stubborn worker shows."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.serving import wait_until


def test_silence_timeout(start_server):
    """An idle worker that gives no sign of life for ``silence_timeout`` seconds is replaced (F39)."""
    server = start_server(silence_timeout="1.5").registered("obey.mar")
    stopped = server.describe("obey")["workers"][0]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(
        lambda: server.describe("obey")["workers"][0]["pid"] not in {stopped, 0, None}, "it has a successor"
    )

    server.home.wait_for_log("was silent for 1.5 s while idle")
    assert server.predict("obey", {}).json()["pid"] != stopped


def test_unregister_model_timeout(start_server):
    """A removed model's worker that is busy longer than ``unregister_model_timeout`` is ended (F50)."""
    server = start_server(unregister_model_timeout=1).registered("obey.mar")
    with ThreadPoolExecutor(1) as executor:
        busy = executor.submit(server.predict, "obey", {"do": "sleep", "seconds": 60})
        wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "it is busy")
        server.unregister("obey")
        answer = busy.result(20)

    assert answer.status_code in {500, 503}
    assert answer.json()["message"]
    assert server.workers() == []
