from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.cluster.opening import open_cluster
from modelserver.models.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def settings(address: str = "127.0.0.1:0", **more: str) -> Settings:
    """Those of a server with workers elsewhere, on this machine."""
    return Settings(worker_launcher="agents", worker_address=address, worker_tls="off", **more)  # type: ignore[arg-type]


async def test_second_server_on_one_address_is_refused(tmp_path: Path) -> None:
    """The second is refused with the setting and its value, and the first listens on."""
    (tmp_path / "other").mkdir()
    async with open_cluster(settings(), tmp_path) as first:
        address = f"127.0.0.1:{first.hub.port}"
        with pytest.raises(ConfigError, match=f"Cannot listen on worker_address={address}: "):
            async with open_cluster(settings(address), tmp_path / "other"):
                pass
        with socket.create_connection(("127.0.0.1", first.hub.port), timeout=5):
            pass


async def test_port_that_another_has_bound_is_refused(tmp_path: Path) -> None:
    """A port in use is refused, also if its owner allows others to bind it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="Cannot listen on worker_address="):
            async with open_cluster(settings(f"127.0.0.1:{taken.getsockname()[1]}"), tmp_path):
                pass


async def test_long_path_does_no_harm(tmp_path: Path) -> None:
    """A working directory whose path is too long for a socket's address does no harm."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    async with open_cluster(settings(), long) as cluster:
        assert cluster.hub.port > 0
