"""How gRPC joins the server."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.grpc import start

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


class Servers:
    """Opens nothing; notes what the environment says then."""

    fork_support: str | None = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    async def open(self, held: Any) -> None:
        Servers.fork_support = os.environ.get(_VARIABLE)


async def test_without_ports_there_is_none() -> None:
    """Nothing is imported where gRPC is off."""
    services: Any = None

    assert await start.open_grpc(services, services, [], None) is None


@pytest.mark.parametrize("before", [None, "1"])
async def test_it_begins_without_handlers_for_forks(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers see the environment as it was."""
    if before is None:
        monkeypatch.delenv(_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(_VARIABLE, before)
    monkeypatch.setattr(start, "import_module", lambda _: SimpleNamespace(GrpcServers=Servers))
    services: Any = "services"
    with socket.socket() as holder:
        servers: Any = await start.open_grpc(services, services, [holder], None)

    assert servers.given == ("services", "services", None)
    assert (Servers.fork_support, os.environ.get(_VARIABLE)) == ("0", before)


async def test_without_the_package_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ports are given back, and the log says what to install."""

    def missing(_: str) -> None:
        raise ImportError("No module named 'grpc'")

    monkeypatch.setattr(start, "import_module", missing)
    services: Any = None
    with socket.socket() as holder:
        assert await start.open_grpc(services, services, [holder], None) is None
        assert holder.fileno() == -1

    assert "gRPC is off: No module named 'grpc'; pip install grpcio" in caplog.text
