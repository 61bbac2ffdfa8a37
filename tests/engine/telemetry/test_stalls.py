"""How long the event loop was held."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.stalls import TOLD, LoopWatch, served

if TYPE_CHECKING:
    import pytest


def hold(seconds: float) -> None:
    """Uses so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def stalls(metrics: ServerMetrics) -> dict[str, float]:
    """Count and sum of those that were seen."""
    lines = metrics.render().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("modelserver_loop_stall_seconds_"))
    return {name.removeprefix("modelserver_loop_stall_seconds_"): float(value) for name, _, value in pairs}


async def test_a_held_loop_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    """What holds the loop is counted with its processor time; the log names the route of a long one."""
    caplog.set_level(logging.WARNING, "modelserver.telemetry")
    metrics = ServerMetrics(hostname="h")
    watch = LoopWatch(metrics.stalled)
    await asyncio.sleep(0.05)
    served.request = "POST /route"
    hold(TOLD + 0.05)
    await asyncio.sleep(0.05)
    watch.close()

    seen = stalls(metrics)
    assert seen["sum"] >= TOLD
    assert seen["count"] >= 1
    assert "The event loop of the server was blocked for " in caplog.text
    assert "the last request was POST /route" in caplog.text


async def test_a_short_stall_is_seen_wherever_it_begins() -> None:
    """One of 25 ms is counted under load, however long ago the loop was looked at."""
    metrics = ServerMetrics(hostname="h")
    watch = LoopWatch(metrics.stalled)
    for number in range(20):
        served.request = "GET /livez"
        await asyncio.sleep(0.03 + number * 0.001)
        hold(0.025)
    await asyncio.sleep(0.02)
    watch.close()

    assert stalls(metrics)["count"] >= 20


async def test_waiting_is_no_stall() -> None:
    """A timer that comes late because the machine is busy with others is no stall of ours."""
    metrics = ServerMetrics(hostname="h")
    watch = LoopWatch(metrics.stalled)
    await asyncio.sleep(0.05)
    before = stalls(metrics)["sum"]
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is held without using the processor
    await asyncio.sleep(0.05)
    watch.close()

    assert stalls(metrics)["sum"] - before < 0.1


async def test_what_is_due_each_second_needs_no_timer_of_its_own() -> None:
    """It is called at once, then a second later; a failure of it does not end the watch."""
    called: list[float] = []

    def fail(now: float) -> None:
        called.append(now)
        raise ValueError("once more")

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    watch = LoopWatch(lambda _: None, each_second=fail)
    for _ in range(200):
        await asyncio.sleep(0.05)
        if len(called) == 2:
            break
    watch.close()

    assert len(failures) == 2
    assert 1.0 <= called[1] - called[0] < 3.0
