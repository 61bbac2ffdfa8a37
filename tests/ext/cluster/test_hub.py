import asyncio
import contextlib
import logging
import os
import ssl
from typing import cast

import msgspec
import pytest
from tests.waiting import until

from modelserver.ext.cluster import hub as hub_module
from modelserver.ext.cluster.greeting import CHALLENGE, CONFIRMATION, RESPONSE, invite, respond
from modelserver.ext.cluster.hub import Hub, first_certificate
from modelserver.ext.cluster.node.dial import dial_streams
from modelserver.surface.tls.context import Certificate

_PATIENCE = 10.0


class Echo(asyncio.Protocol):
    """What owners of tickets get here."""

    def connection_made(self, transport):
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data):
        self.transport.write(data)


class Peer:
    """Someone at the workers' address."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def is_closed(self):
        """Waits until the server has closed the connection, with nothing more said."""
        with contextlib.suppress(OSError):
            return await asyncio.wait_for(self.reader.read(1), _PATIENCE) == b""
        return True

    async def echoes(self):
        """Whether the connection is its ticket's owner's."""
        self.writer.write(b"hello")
        return await asyncio.wait_for(self.reader.readexactly(5), _PATIENCE) == b"hello"

    async def challenged(self):
        return await asyncio.wait_for(self.reader.readexactly(CHALLENGE.size), _PATIENCE)


@pytest.fixture(params=["plain", "tls"])
async def hub(request, bound, tmp_path):
    certificate = Certificate.throwaway(["127.0.0.1"]) if request.param == "tls" else None
    made = Hub(bound, "127.0.0.1", certificate=certificate, folder=tmp_path)
    await made.open()
    yield made
    made.close()


@pytest.fixture
async def visit(hub):
    """Connects, with TLS if the server has it; ``source`` is the address to come from."""
    peers = []

    async def connect(source="127.0.0.1", *, bare=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = context if hub.invite(Echo).certificate and not bare else None
        peer = Peer(*await asyncio.open_connection("127.0.0.1", hub.port, ssl=secure, local_addr=(source, 0)))
        peers.append(peer)
        return peer

    yield connect
    for peer in peers:
        peer.writer.transport.abort()


async def test_a_ticket_opens_one_connection_unless_it_is_revoked(hub, monkeypatch):
    monkeypatch.setattr("modelserver.ext.cluster.node.dial.PAUSES", ())
    invitation = hub.invite(Echo)
    first = Peer(*await dial_streams(invitation))
    assert await first.echoes()
    with pytest.raises(ConnectionError):
        await dial_streams(invitation)
    assert await first.echoes()
    assert hub.strangers.count == 0
    first.writer.transport.abort()

    revoked, used = hub.invite(Echo), hub.invite(Echo)
    hub.revoke(revoked)
    with pytest.raises(ConnectionError):
        await dial_streams(revoked)
    peer = Peer(*await dial_streams(used))
    hub.revoke(used)
    assert await peer.echoes()
    peer.writer.transport.abort()


async def test_a_recorded_greeting_opens_nothing(hub, visit):
    invitation = hub.invite(Echo)
    early, later = await visit(), await visit()
    response, expected = respond(invitation, await early.challenged())
    await later.challenged()
    later.writer.write(response)
    assert await later.is_closed()
    early.writer.write(response)
    assert await early.reader.readexactly(CONFIRMATION) == expected
    again = await visit()
    await again.challenged()
    again.writer.write(response)
    assert await again.is_closed()


async def test_one_of_two_connections_with_a_ticket_gets_in(hub, visit):
    invitation = hub.invite(Echo)
    peers = [await visit(), await visit()]
    for peer in peers:
        response, _ = respond(invitation, await peer.challenged())
        peer.writer.write(response)
    read = [peer.reader.read(CONFIRMATION) for peer in peers]
    answers = await asyncio.gather(*read, return_exceptions=True)
    assert sorted(len(a) if isinstance(a, bytes) else 0 for a in answers) == [0, CONFIRMATION]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4, os.urandom(RESPONSE.size), bytes(1 << 20), b"\xff" * 200],
    ids=["http", "random", "megabyte", "more"],
)
async def test_garbage_is_answered_with_the_end(hub, visit, data):
    peer = await visit()
    await peer.challenged()
    peer.writer.write(data)
    assert await peer.is_closed()
    assert hub.strangers.count == 0


async def test_greeting_may_come_in_pieces_but_nothing_may_follow_at_once(hub, visit):
    peer, other = await visit(), await visit()
    response, expected = respond(hub.invite(Echo), await peer.challenged())
    for position in range(len(response)):
        peer.writer.write(response[position : position + 1])
        await asyncio.sleep(0)
    assert await peer.reader.readexactly(CONFIRMATION) == expected
    assert await peer.echoes()
    response, _ = respond(hub.invite(Echo), await other.challenged())
    other.writer.write(response + b"x")
    assert await other.is_closed()


@pytest.mark.parametrize("data", [b"", b"m", b"\x16\x03\x01\x02"])
async def test_silence_ends(hub, visit, data, monkeypatch, caplog):
    """Who does not complete a greeting, or its TLS handshake, in time is disconnected."""
    monkeypatch.setattr(hub_module, "GREETING_TIME", 0.2)
    peer = await visit(bare=True)
    peer.writer.write(data)
    with contextlib.suppress(OSError):
        assert len(await asyncio.wait_for(peer.reader.read(), _PATIENCE)) in {0, CHALLENGE.size}
    assert hub.strangers.count == 0
    assert "refused" in caplog.text


async def test_a_connection_that_breaks_is_forgotten_at_once(hub, visit):
    for data in (b"", b"\x16\x03\x01\x02\x00\x01"):
        for end in ("abort", "close"):
            peer = await visit(bare=True)
            peer.writer.write(data)
            await until(lambda: hub.strangers.count == 1)
            getattr(peer.writer.transport, end)()
            await until(lambda: hub.strangers.count == 0)
    peer = await visit()
    await peer.challenged()
    peer.writer.transport.abort()
    await until(lambda: hub.strangers.count == 0)


async def test_strangers_do_not_keep_a_node_out(hub, visit, monkeypatch):
    monkeypatch.setattr(hub_module, "MAX_STRANGERS", 4)
    other = await visit("127.0.0.2")
    strangers = [await visit(bare=True) for _ in range(6)]
    await until(lambda: hub.strangers.count == 4)
    assert await strangers[0].is_closed() or hub.invite(Echo).certificate == ""
    node = Peer(*await dial_streams(hub.invite(Echo)))
    assert await node.echoes()
    # The crowd is from one address: those from others are left alone.
    response, expected = respond(hub.invite(Echo), await other.challenged())
    other.writer.write(response)
    assert await other.reader.readexactly(CONFIRMATION) == expected
    node.writer.transport.abort()


@pytest.mark.parametrize("hub", ["tls"], indirect=True)
async def test_only_tls_1_3_is_spoken(hub, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", hub.port, ssl=context)
    await until(lambda: hub.strangers.count == 0)

    monkeypatch.setattr("modelserver.ext.cluster.node.dial.PAUSES", ())
    monkeypatch.setattr("modelserver.ext.cluster.node.dial.DIAL_TIME", 0.3)
    with pytest.raises(OSError, match=r"answer|closed"):
        await dial_streams(msgspec.structs.replace(hub.invite(Echo), certificate=""))


async def test_its_own_machine_has_a_socket(hub):
    invitation = hub.invite(Echo)
    peer = Peer(*await asyncio.open_unix_connection(invitation.path))
    response, expected = respond(invitation, await peer.challenged())
    peer.writer.write(response)
    assert await peer.reader.readexactly(CONFIRMATION) == expected
    assert await peer.echoes()
    unknown = Peer(*await asyncio.open_unix_connection(invitation.path))
    unknown.writer.write(respond(invite("h", 1), await unknown.challenged())[0])
    assert await unknown.is_closed()
    for each in (peer, unknown):
        each.writer.transport.abort()


async def test_closing_ends_strangers_only(hub, visit):
    node, invitation = Peer(*await dial_streams(hub.invite(Echo))), hub.invite(Echo)
    stranger = await visit()
    response, _ = respond(invitation, await stranger.challenged())
    hub.close()
    stranger.writer.write(response)
    assert await stranger.is_closed()
    assert await node.echoes()
    with pytest.raises(OSError):  # noqa: PT011 - any: nobody listens
        await asyncio.open_connection("127.0.0.1", hub.port)
    node.writer.transport.abort()


async def test_the_log_is_not_flooded_and_keeps_secrets(hub, visit, caplog):
    caplog.set_level(logging.DEBUG)
    invitation = hub.invite(Echo)
    for _ in range(5):
        peer = await visit()
        response = bytearray(respond(invitation, await peer.challenged())[0])
        response[-1] ^= 1
        peer.writer.write(bytes(response))
        assert await peer.is_closed()
    refusals = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(refusals) <= 2
    assert "could not prove that it has the ticket" in refusals[0]
    for hidden in (invitation.ticket, invitation.secret, bytes(response)):
        assert repr(hidden)[2:-1] not in caplog.text
        assert hidden.hex() not in caplog.text


def test_nodes_trust_only_the_servers_own_certificate():
    one, other = (Certificate.throwaway([]).chain.decode() for _ in range(2))
    assert first_certificate(one + other) == one
    assert first_certificate("some text\n" + one) == one
