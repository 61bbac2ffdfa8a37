import asyncio
import contextlib
from types import SimpleNamespace

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.extension import Extension
from modelserver.ext.parking.keeper import Keeper


def _host():
    """The server as the extension sees it, and what the extension adds: of versions, and tasks."""
    prepared = []
    tasks = []
    host = SimpleNamespace(
        prepare=prepared.append,
        run=tasks.append,
        routes=lambda *_: None,
        services=SimpleNamespace(metrics=ServerMetrics(hostname="h")),
        settings=SimpleNamespace(max_models_memory=1 << 30, max_device_memory=0),
    )
    return host, prepared, tasks


async def test_first_model_on_demand_makes_the_keeper(floor, monkeypatch):
    """Which is closed with the server; without such a model there is none."""
    closed = []

    async def close(keeper):
        closed.append(keeper)

    monkeypatch.setattr(Keeper, "close", close)
    host, prepared, _ = _host()
    extension = Extension()
    await extension.open(host)
    model = floor.add("a", load="at-start").model
    prepared[0](model)
    await extension.close(1.0)
    assert closed == []
    model = floor.add("b").model
    prepared[0](model)
    await extension.close(1.0)

    assert [each.model for keeper in closed for each in keeper.residents] == [model]


async def test_requests_wait_for_models_while_the_server_drains(floor, monkeypatch):
    """The keeper goes on after the tasks of a listening server have ended, until the extension closes."""
    states = []
    runs = asyncio.Event()

    async def run(keeper):
        runs.set()
        try:
            await asyncio.Event().wait()
        finally:
            states.append("ended")

    monkeypatch.setattr(Keeper, "run", run)
    host, prepared, tasks = _host()
    extension = Extension()
    await extension.open(host)
    running = asyncio.create_task(tasks[0]())
    prepared[0](floor.add("a").model)
    await runs.wait()
    running.cancel()
    await asyncio.wait({running})
    assert states == []
    await extension.close(1.0)

    assert states == ["ended"]


async def test_lost_cancellation_does_not_keep_the_server_from_stopping(floor, monkeypatch):
    """As ``asyncio.wait_for`` of Python 3.11 may lose one."""
    runs = asyncio.Event()

    async def run(keeper):
        runs.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(Keeper, "run", run)
    host, prepared, tasks = _host()
    extension = Extension()
    await extension.open(host)
    running = asyncio.create_task(tasks[0]())
    prepared[0](floor.add("a").model)
    await runs.wait()
    # TimeoutError if it does not end.
    await asyncio.wait_for(extension.close(0.0), 10.0)

    running.cancel()
    await asyncio.wait({running})
