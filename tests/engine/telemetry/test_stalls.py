"""How long the event loop was held, on a loop and a clock of the test."""

import logging
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry import stalls
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.stalls import EVERY, LOGGED, loop_watch


class Loop:
    """One timer, and how much time has passed, on the clock and on the processor."""

    def __init__(self):
        self.now = self.used = self.due = 0.0
        self.fire: Callable[[], None]

    def call_later(self, pause, callback):
        self.due, self.fire = self.now + pause, callback
        return SimpleNamespace(cancel=lambda: setattr(self, "due", math.inf))

    def hold(self, seconds, used=0.0, since_timer=0.0):
        """Is held from so long before the timer is due, and computes for a part of it; then looks."""
        self.now = max(self.due, self.due - since_timer + seconds)
        self.used += used
        self.fire()


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    clock = SimpleNamespace(monotonic=lambda: made.now, thread_time=lambda: made.used)
    monkeypatch.setattr(stalls, "time", clock)
    monkeypatch.setattr(stalls, "asyncio", SimpleNamespace(get_running_loop=lambda: made))
    monkeypatch.setattr(stalls, "limit_tracebacks", lambda: None)
    return made


def seen(metrics):
    name = "modelserver_loop_stall_seconds"
    lines = [line.split() for line in b"".join(metrics.pieces([name])).decode().splitlines()]
    values = {line[0]: float(line[1]) for line in lines if line[0] != "#"}
    return values[f"{name}_count"], values[f"{name}_sum"]


def test_what_holds_the_loop_is_counted_with_its_processor_time(loop, caplog):
    caplog.set_level(logging.WARNING, "modelserver.telemetry")
    metrics = ServerMetrics(hostname="h")
    loop_watch.start(metrics.stalled)
    loop_watch.request = "POST /route"
    loop.hold(LOGGED + 0.1, used=LOGGED + 0.05)

    assert seen(metrics) == (1, pytest.approx(LOGGED + 0.05))
    assert "The event loop of the server was blocked for 150 ms" in caplog.text
    assert "the last request was POST /route" in caplog.text


@pytest.mark.parametrize("since_timer", [0.0, EVERY / 2, EVERY])
def test_a_short_stall_is_seen_wherever_it_begins(loop, since_timer):
    """One of 25 ms is counted under load, however long ago the loop was looked at."""
    metrics = ServerMetrics(hostname="h")
    loop_watch.start(metrics.stalled)
    loop_watch.request = "GET /livez"
    loop.hold(0.025, used=0.025, since_timer=since_timer)

    assert seen(metrics) == (1, pytest.approx(0.025))


def test_waiting_is_no_stall(loop):
    """A timer that comes late because the machine is busy with others is no stall of ours."""
    metrics = ServerMetrics(hostname="h")
    loop_watch.start(metrics.stalled)
    loop.hold(0.3)
    loop_watch.close()

    assert seen(metrics) == (0, 0)
    assert loop.due == math.inf
