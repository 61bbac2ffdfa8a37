"""A pool that follows its load, alone and with everything else that changes a running model."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

QUICK = {
    "autoscale": True,
    "autoscale_target_wait": 20,
    "autoscale_up_pause": 200,
    "autoscale_down_pause": 400,
}


class Clients:
    """Threads that ask one thing after the other, as many of them as are wanted, and count their answers.

    A single one takes its time between two requests.
    """

    def __init__(self, server: Server, model: str, most: int) -> None:
        self.wanted = most
        self.asked = 0
        self.answers: Counter[str] = Counter()
        self._server = server
        self._model = model
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(most)]

    @contextmanager
    def asking(self) -> Iterator[Clients]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _ask(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            if number >= self.wanted:
                self._stop.wait(0.02)
                continue
            if self.wanted == 1:
                self._stop.wait(0.1)
            count += 1
            token = f"{number}-{count}"
            answer = self._server.predict(self._model, {"do": "sleep", "seconds": 0.04, "token": token})
            with self._lock:
                self.asked += 1
                self.answers[kind(answer, token)] += 1


def kind(answer: httpx.Response, token: str) -> str:
    """What an answer is: the right one, the one of a worker that was killed, or another."""
    if answer.status_code == 200:
        return "right" if answer.json()["token"] == token else "somebody else's"
    died = answer.status_code == 500 and answer.json()["message"].startswith("Worker died.")
    return "died" if died else f"{answer.status_code} {answer.text}"


def ready_pids(server: Server, name: str) -> list[int]:
    """The processes of the loaded workers."""
    return [worker["pid"] for worker in server.describe(name)["workers"] if worker["status"] == "READY"]


def workers(server: Server, name: str) -> int:
    """How many are loaded."""
    return len(ready_pids(server, name))


def change(server: Server, name: str, **parameters: object) -> httpx.Response:
    return server.management.put(f"/models/{name}", params={k: str(v) for k, v in parameters.items()})


def test_up_and_down(shared_server: Server) -> None:
    """Load brings workers, up to the most, and its end takes them away; describe, log and metrics say so."""
    shared_server.registered("obey.mar", model_name="grows", min_workers=1, max_workers=2, **QUICK)
    clients = Clients(shared_server, "grows", 6)
    with clients.asking():
        wait_until(lambda: workers(shared_server, "grows") == 2, "a second worker serves")
        state = shared_server.describe("grows")["autoscaling"]
    assert (state["wish"], state["source"]) == (2, "register parameter")
    assert state["lastChange"]["reason"] == "queue_wait"
    assert (state["lastChange"]["from"], state["lastChange"]["to"]) == (1, 2)
    assert (state["targetWait"], state["upPause"], state["downPause"]) == (20, 200, 400)

    wait_until(lambda: len(shared_server.describe("grows")["workers"]) == 1, "it goes again")
    assert clients.answers == {"right": clients.asked}
    labels = {"model_name": "grows", "direction": "up", "reason": "queue_wait"}
    ups = shared_server.metric("modelserver_scalings_total", **labels)
    labels = {"model_name": "grows", "direction": "down", "reason": "idle"}
    assert shared_server.metric("modelserver_scalings_total", **labels) == ups >= 1
    assert shared_server.metric("modelserver_workers_wished", model_name="grows") == 1
    shared_server.home.wait_for_log("Autoscaling grows_1.0: 1 -> 2 workers (queue_wait): waited ")
    shared_server.home.wait_for_log("Autoscaling grows_1.0: 2 -> 1 workers (idle)")
    shared_server.unregister("grows")


def test_switched_while_running(shared_server: Server) -> None:
    """It is off unless asked for, is switched on and off live, and bounds are set by hand as always."""
    shared_server.registered("obey.mar", model_name="switched", min_workers=1, max_workers=2)
    assert "autoscaling" not in shared_server.describe("switched")
    answer = change(shared_server, "switched", autoscale="true", autoscale_target_wait=7)
    assert answer.json()["status"] == 'Model "switched" changed: autoscale=true, autoscale_target_wait=7'
    state = wait_until(
        lambda: (
            shared_server.describe("switched")["autoscaling"].get("reason")
            and shared_server.describe("switched")["autoscaling"]
        ),
        "it is looked at",
    )
    assert (state["reason"], state["targetWait"], state["wish"]) == ("steady", 7, 1)

    assert change(shared_server, "switched", min_worker=1, synchronous="true").status_code == 200
    wait_until(
        lambda: shared_server.describe("switched")["autoscaling"]["reason"] == "equal_bounds", "bounds count"
    )
    assert change(shared_server, "switched", autoscale="false").status_code == 200
    assert "autoscaling" not in shared_server.describe("switched")
    assert change(shared_server, "switched", autoscale_up_pause=1).status_code == 400
    shared_server.unregister("switched")


@pytest.mark.slow
def test_answers_are_as_many_as_requests(shared_server: Server) -> None:
    """While workers come, go and are killed, and settings change, each request gets its own answer (F39).

    Only what a killed worker was computing may be answered 500; the server's counts agree.
    """
    server = shared_server
    server.registered(
        "obey.mar", model_name="all", min_workers=1, max_workers=3, batch_size=2, max_batch_delay=5, **QUICK
    )
    clients = Clients(server, "all", 12)
    changes, kills = 0, 0
    ended = threading.Event()

    def keep_changing() -> None:
        nonlocal changes
        while not ended.wait(0.05):
            answer = change(
                server,
                "all",
                batch_size=(1, 4, 2, 3)[changes % 4],
                max_batch_delay=changes % 7,
                batch_policy=("greedy", "window", "adaptive")[changes % 3],
                response_timeout=30 + changes % 30,
                autoscale_target_wait=(20, 15)[changes % 2],
            )
            assert answer.status_code == 200, answer.text
            changes += 1

    changing = threading.Thread(target=keep_changing)
    changing.start()
    chosen = random.Random(7)
    try:
        with clients.asking():
            for _ in range(3):
                clients.wanted = 12
                wait_until(lambda: workers(server, "all") >= 2, "there are more workers")
                for _ in range(2):
                    loaded = wait_until(lambda: ready_pids(server, "all"), "one is loaded")
                    os.kill(chosen.choice(loaded), signal.SIGKILL)
                    kills += 1
                    enough = clients.asked + 60
                    wait_until(lambda enough=enough: clients.asked >= enough, "many are answered")
                clients.wanted = 1
                wait_until(lambda: len(server.describe("all")["workers"]) == 1, "there are fewer workers")
    finally:
        ended.set()
        changing.join()

    died = clients.answers["died"]
    assert clients.answers == Counter({"right": clients.asked - died, "died": died})
    assert died <= 4 * kills
    assert changes > 10
    requests = server.metric("ts_inference_requests_total", model_name="all")
    assert requests == clients.asked >= 360
    assert server.metric("modelserver_batch_requests_sum", model_name="all") == clients.answers["right"]
    assert server.metric("modelserver_scalings_total", model_name="all", direction="up") >= 3
    assert server.metric("modelserver_scalings_total", model_name="all", direction="down") >= 3
    assert server.metric("modelserver_rejected_total", model_name="all") == 0
    server.unregister("all")
