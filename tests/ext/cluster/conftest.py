"""A hub and machines of this machine: agents as plain processes, connected over the network."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from modelserver.ext.cluster.extension import ProcessPlacer
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.surface.tls.context import Certificate


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server's loop, on which connections behave otherwise than on Python's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def bound():
    """A socket on loopback that does not listen yet."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


@pytest.fixture(params=["plain", "tls", "local"])
async def cluster(request, bound, tmp_path, monkeypatch):
    """Machines connected in each of the three ways."""
    kind = request.param
    certificate = Certificate.throwaway(["127.0.0.1"]) if kind == "tls" else None
    if kind != "local":
        monkeypatch.setenv(LOCAL_SOCKET, "0")
    monkeypatch.setenv("MODELSERVER_NODE_CACHE", str(tmp_path / "cache"))
    hub = Hub(bound, "127.0.0.1", certificate=certificate, folder=tmp_path)
    await hub.open()
    placer = ProcessPlacer()
    yield Cluster(hub, placer, placement_timeout=30.0, lost_after=4.0)
    await placer.close()
    hub.close()
