import contextlib
import ipaddress
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.serving import free_port

from modelserver.errors import ConfigError
from modelserver.models.settings.address import Address, HostPort
from modelserver.models.settings.settings import Settings
from modelserver.run.binding import bind, roles_by_address


def free_address():
    return Address("http", "127.0.0.1", free_port())


def test_equal_addresses_share_a_listener():
    """Each address has its role; equal ones share a listener, which then plays metrics too (reference 1)."""
    inference, management, metrics = (free_address() for _ in range(3))
    settings = Settings(inference_address=inference, management_address=management, metrics_address=metrics)
    roles = {inference: {"inference"}, management: {"management"}, metrics: {"metrics"}}
    assert roles_by_address(settings) == roles

    one = Settings(inference_address=inference, management_address=inference, metrics_address=metrics)
    assert roles_by_address(one) == {inference: {"inference", "management", "metrics"}, metrics: {"metrics"}}

    without = replace(one, enable_metrics_api=False)
    assert roles_by_address(without) == {inference: {"inference", "management"}}


def test_address_that_cannot_be_had_stops_the_start():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("http", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError) as caught:
            bind(address, "metrics_address")

    assert str(caught.value) == f"Cannot listen on metrics_address={address}: Address already in use"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_foreign_address_stops_the_start(host):
    with pytest.raises(ConfigError, match="Cannot listen on inference_address=http://"):
        bind(Address("http", host, 8080), "inference_address")


def test_stale_socket_file_is_replaced(tmp_path):
    """It is for its owner; one that nobody listens on is replaced, a living one and other files are not."""
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


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
def test_all_ipv6_addresses_include_ipv4():
    with HostPort("::", 0).bind() as bound:
        bound.listen()
        with socket.create_connection(("127.0.0.1", bound.getsockname()[1])):
            connected, (host, *_) = bound.accept()
            connected.close()

    assert host == "::ffff:127.0.0.1"


def link_local():
    """An address of this machine that is valid on one link, with its interface."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text("ascii").splitlines():
            digits, *_, interface = line.split()
            if digits.startswith("fe80"):
                return f"{ipaddress.IPv6Address(int(digits, 16))}%{interface}"
    return None


@pytest.mark.skipif(link_local() is None, reason="there is no link with IPv6")
def test_a_scope_names_an_interface():
    host = str(link_local())
    with HostPort(host, 0).bind() as bound:
        assert bound.getsockname()[3] == socket.if_nametoindex(host.partition("%")[2])
    with pytest.raises(ConfigError, match=r"Cannot listen on x=http://\[fe80::1%nosuch\]:0: "):
        bind(Address("http", "fe80::1%nosuch"), "x")
