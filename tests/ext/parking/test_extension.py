import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking import extension
from modelserver.ext.parking.keeper import Keeper


async def opened():
    """What closes the extension; what it does with each model; and its task while the server listens."""
    prepared, tasks, closing = [], [], contextlib.AsyncExitStack()
    host = SimpleNamespace(
        prepare=prepared.append,
        run=tasks.append,
        routes=lambda *_: None,
        closing=closing,
        services=SimpleNamespace(metrics=ServerMetrics(hostname="h")),
        settings=SimpleNamespace(max_models_memory=1 << 30, max_device_memory=0),
    )
    await extension.extend(host)
    return closing, prepared[0], tasks[0]


@pytest.fixture
def keeping(floor, monkeypatch):
    """``keeping(wait)`` returns what closes the extension, and its task, once its keeper will ``wait``."""
    runs = asyncio.Event()

    async def keep(wait):
        async def run(_):
            runs.set()
            await wait()

        monkeypatch.setattr(Keeper, "run", run)
        closing, prepare, task = await opened()
        running = asyncio.create_task(task())
        prepare(floor.add("a").model)
        await runs.wait()
        return closing, running

    return keep


async def test_first_model_on_demand_makes_the_keeper(floor, monkeypatch):
    """Which is closed with the server; without such a model there is none."""
    closed = []

    async def close(keeper):
        closed.append(keeper)

    monkeypatch.setattr(Keeper, "close", close)
    closing, prepare, _ = await opened()
    prepare(floor.add("a", load="at-start").model)
    await closing.aclose()
    assert closed == []
    model = floor.add("b").model
    prepare(model)
    await closing.aclose()

    assert [each.model for keeper in closed for each in keeper.residents] == [model]


async def test_requests_wait_for_models_while_the_server_drains(keeping):
    """The keeper goes on after the tasks of a listening server have ended, until the extension closes."""
    states = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            states.append("ended")

    closing, running = await keeping(wait)
    running.cancel()
    await asyncio.wait({running})
    assert states == []
    await closing.aclose()

    assert states == ["ended"]


async def test_lost_cancellation_does_not_keep_the_server_from_stopping(keeping, monkeypatch):
    """As ``asyncio.wait_for`` of Python 3.11 may lose one."""

    async def wait():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(extension, "GRACE", 0.0)
    closing, running = await keeping(wait)
    # TimeoutError if it does not end.
    await asyncio.wait_for(closing.aclose(), 10.0)

    running.cancel()
    await asyncio.wait({running})
