import asyncio
import socket
import struct

import pytest

from modelserver.surface.http import sockets


@pytest.fixture
async def ends():
    """A connection: the server's transport, and the client's socket."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, accepted)
        yield transport, client
        transport.abort()


async def test_bytes_in_the_system_are_counted(ends):
    transport, client = ends
    assert sockets.bytes_in_system(transport) == 0
    transport.write(bytes(100_000))
    waiting = sockets.bytes_in_system(transport) + transport.get_write_buffer_size()
    assert 0 < waiting < 100_000

    client.setblocking(False)
    for _ in range(10):
        client.recv(4096)
        await asyncio.sleep(0.01)
    assert 0 < sockets.bytes_in_system(transport) + transport.get_write_buffer_size() < waiting


async def test_transport_without_an_open_socket_has_no_bytes():
    assert sockets.bytes_in_system(asyncio.Transport()) == 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert sockets.bytes_in_system(asyncio.Transport({"socket": other})) == 0
    assert sockets.bytes_in_system(asyncio.Transport({"socket": other})) == 0


async def test_reset_is_noticed_without_reading(ends):
    transport, client = ends
    transport.pause_reading()  # type: ignore[attr-defined]
    assert not sockets.is_reset(transport)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()

    assert sockets.is_reset(transport)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "unix"),
        (None, "unix"),
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        (("fe80::1%eth0", 5, 0, 2), "[fe80::1%eth0]:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        (("::ffff:a00:1", 5, 0, 0), "[::ffff:a00:1]:5"),
    ],
)
def test_client_is_printed_by_address_and_port(name, text):
    """IPv6 is in brackets; IPv4 that comes to an IPv6 socket, which the system writes with dots, is IPv4."""
    assert sockets.address_text(sockets.remote_address(asyncio.Transport({"peername": name}))) == text


def test_local_address_is_one_of_the_network_or_a_path():
    names = [("::1", 80, 0, 0), "/run/s", b"\0abstract"]
    addresses = [sockets.local_address(asyncio.Transport({"sockname": name})) for name in names]

    assert addresses == [("::1", 80), ("/run/s", None), None]
