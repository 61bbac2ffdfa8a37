"""Workers for which there is no machine in a cluster, from the registration to the answer."""

import asyncio
import socket
from typing import Any

import pytest
from tests.engine.pools.pools import request as row
from tests.models.test_builder import SOURCES, write
from tests.waiting import until

from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import ServiceUnavailable, StartFailed
from modelserver.ext.cluster.extension import ProcessPlacer
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.models.builder import VersionBuilder
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings


class FullPlacer(ProcessPlacer):
    """A placer with so many places; a further request waits for one that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 0

    async def place(self, invitations: Any, demand: Any, label: str) -> Any:
        if self.room:
            self.room -= 1
            return await super().place(invitations, demand, label)
        return _Waiting()

    def situation(self) -> str:
        return "Free are 0.5 of 4 CPUs."


class _Waiting:
    """A place that was requested and never comes."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def withdraw(self) -> None:
        """Nothing is there."""


@pytest.fixture
async def placer(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSERVER_NODE_CACHE", str(tmp_path / "cache"))
    made = FullPlacer()
    yield made
    await made.close()


@pytest.fixture
async def registry(tmp_path, placer):
    """A registry with the model ``m``, which waits only a moment for a machine."""
    write(tmp_path / "store" / "m")
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    hub = Hub(bound, "127.0.0.1")
    await hub.open()
    (tmp_path / "work").mkdir()
    settings = Settings(model_store=tmp_path / "store", worker_launcher="agents")
    cluster = Cluster(hub, placer, placement_timeout=2.0, lost_after=60.0)
    metrics, devices = ServerMetrics(mode="prometheus"), DeviceRing(0)
    builder = VersionBuilder(settings, SOURCES, tmp_path / "work", metrics, devices)
    builder.cluster = cluster
    made = Registry(builder)
    yield made
    await made.close(grace=1.0)
    hub.close()


@pytest.mark.slow  # waits twice for a machine that never comes
async def test_no_machine_is_free(registry, placer, monkeypatch):
    model = await registry.register(Registration(url="m"))
    started = await registry.scale("m", None, 1, 1)
    with pytest.raises(ServiceUnavailable) as refused:
        model.pool.submit(row(b"x"))
    assert dict(refused.value.headers)[b"retry-after"] == b"1"
    with pytest.raises(StartFailed, match=r"no machine was found within 2 s\. Free are 0\.5 of 4 CPUs\."):
        await registry.wait_scaled(model, started, None)
    # A process may take long to arrive.
    cluster = registry.builder.cluster
    object.__setattr__(cluster, "placement_timeout", 60.0)
    placer.room = 1
    await until(lambda: model.pool.ready, 60.0)
    object.__setattr__(cluster, "placement_timeout", 2.0)
    more = await registry.scale("m", None, 2, 2)
    with pytest.raises(StartFailed, match="Free are"):
        await registry.wait_scaled(model, more, None)
    assert [worker.state.value for worker in model.pool.workers] == ["READY", "LOADING"]
    model.pool.submit(row(b"x"))
