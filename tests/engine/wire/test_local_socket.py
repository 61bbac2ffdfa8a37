from __future__ import annotations

import socket
from pathlib import Path

import pytest

from modelserver.engine.wire.local_socket import address_of


@pytest.mark.parametrize("depth", [0, 30])
def test_a_path_of_any_length(tmp_path: Path, depth: int) -> None:
    """A socket can be bound and connected to where its path is longer than the system takes."""
    folder = tmp_path.joinpath(*["folder"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / "workers.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with address_of(path) as address:
            server.bind(address)
        server.listen()
        assert Path(path).is_socket()
        with address_of(path) as address:
            client.connect(address)
