import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.extension import Extension
from modelserver.ext.parking.keeper import Keeper


async def opened():
    """The extension of a server; what it does with each of its models; and its task while that listens."""
    prepared, tasks = [], []
    host = SimpleNamespace(
        prepare=prepared.append,
        run=tasks.append,
        routes=lambda *_: None,
        services=SimpleNamespace(metrics=ServerMetrics(hostname="h")),
        settings=SimpleNamespace(max_models_memory=1 << 30, max_device_memory=0),
    )
    extension = Extension()
    await extension.open(host)
    return extension, prepared[0], tasks[0]


@pytest.fixture
def keeping(floor, monkeypatch):
    """``keeping(wait)`` returns an extension and its task, once its keeper runs and will ``wait``."""
    runs = asyncio.Event()

    async def keep(wait):
        async def run(_):
            runs.set()
            await wait()

        monkeypatch.setattr(Keeper, "run", run)
        extension, prepare, task = await opened()
        running = asyncio.create_task(task())
        prepare(floor.add("a").model)
        await runs.wait()
        return extension, running

    return keep


async def test_first_model_on_demand_makes_the_keeper(floor, monkeypatch):
    """Which is closed with the server; without such a model there is none."""
    closed = []

    async def close(keeper):
        closed.append(keeper)

    monkeypatch.setattr(Keeper, "close", close)
    extension, prepare, _ = await opened()
    prepare(floor.add("a", load="at-start").model)
    await extension.close(1.0)
    assert closed == []
    model = floor.add("b").model
    prepare(model)
    await extension.close(1.0)

    assert [each.model for keeper in closed for each in keeper.residents] == [model]


async def test_requests_wait_for_models_while_the_server_drains(keeping):
    """The keeper goes on after the tasks of a listening server have ended, until the extension closes."""
    states = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            states.append("ended")

    extension, running = await keeping(wait)
    running.cancel()
    await asyncio.wait({running})
    assert states == []
    await extension.close(1.0)

    assert states == ["ended"]


async def test_lost_cancellation_does_not_keep_the_server_from_stopping(keeping):
    """As ``asyncio.wait_for`` of Python 3.11 may lose one."""

    async def wait():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    extension, running = await keeping(wait)
    # TimeoutError if it does not end.
    await asyncio.wait_for(extension.close(0.0), 10.0)

    running.cancel()
    await asyncio.wait({running})
