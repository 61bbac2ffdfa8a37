"""Sockets and the addresses that they are bound to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import free_port

from modelserver.binding import bind, roles_by_address
from modelserver.errors import ConfigError
from modelserver.settings.address import Address
from modelserver.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def free_address() -> Address:
    return Address("http", "127.0.0.1", free_port())


def test_roles() -> None:
    """Each address has its role; equal ones share a listener, which then plays metrics too (reference 1)."""
    inference, management, metrics = (free_address() for _ in range(3))
    settings = Settings(inference_address=inference, management_address=management, metrics_address=metrics)
    assert roles_by_address(settings) == {
        inference: {"inference"},
        management: {"management"},
        metrics: {"metrics"},
    }

    shared = Settings(inference_address=inference, management_address=inference, metrics_address=metrics)
    assert roles_by_address(shared) == {
        inference: {"inference", "management", "metrics"},
        metrics: {"metrics"},
    }

    without = Settings(
        inference_address=inference,
        management_address=inference,
        metrics_address=metrics,
        enable_metrics_api=False,
    )
    assert roles_by_address(without) == {inference: {"inference", "management"}}


def test_bind_taken() -> None:
    """An address that is taken stops the start with the names of setting, address and reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("http", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError) as caught:
            bind(address, "metrics_address")

    assert str(caught.value) == f"Cannot listen on metrics_address={address}: Address already in use"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_bind_elsewhere(host: str) -> None:
    """An address of another machine, or of none, is refused likewise."""
    with pytest.raises(ConfigError, match="Cannot listen on inference_address=http://"):
        bind(Address("http", host, 8080), "inference_address")


def test_bind_unix(tmp_path: Path) -> None:
    """A socket file is for its owner; one that nobody listens on is replaced, a living one
    and other files are not.
    """
    path = tmp_path / "s"
    address = Address("unix", path=str(path))
    first = bind(address, "inference_address")
    assert path.stat().st_mode & 0o777 == 0o600
    first.listen()
    with pytest.raises(ConfigError, match="Address already in use"):
        bind(address, "inference_address")
    first.close()
    bind(address, "inference_address").close()

    with pytest.raises(ConfigError):
        bind(Address("unix", path=str(tmp_path / "absent" / "s")), "inference_address")
