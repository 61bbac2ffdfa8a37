import asyncio
import os
import socket

import pytest
from tests.ext.cluster.conversation import predict

from modelserver.engine.wire.arena import Arena
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Predict
from modelserver.ext.cluster.greeting import invite
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.node.agent import connect, hand_over, receive_invitation
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.surface.tls.context import Certificate


@pytest.fixture
def memory():
    made = Arena.create()
    if made is None:
        pytest.skip("memory cannot be shared here")
    yield made
    made.close()


def test_the_ticket_and_the_memory_are_handed_over(memory):
    agent, worker = socket.socketpair()
    invitation = invite("h", 1, certificate="C" * 8000, path="/run/x.sock")
    with agent, worker:
        hand_over(agent, invitation, memory)
        got, adopted = receive_invitation(worker)
        assert got == invitation
        assert not os.get_inheritable(adopted.descriptor)
        assert os.fstat(adopted.descriptor).st_ino == os.fstat(memory.descriptor).st_ino
        adopted.close()
        hand_over(agent, invitation, None)
        assert receive_invitation(worker) == (invitation, None)


@pytest.mark.parametrize("kind", ["tls", "plain", "local"])
async def test_workers_connection_carries_frames(kind, bound, tmp_path, monkeypatch, memory):
    monkeypatch.setenv(LOCAL_SOCKET, "1" if kind == "local" else "0")
    certificate = Certificate.throwaway([]) if kind == "tls" else None
    hub = Hub(bound, "127.0.0.1", certificate=certificate, folder=tmp_path)
    await hub.open()
    streams = asyncio.get_running_loop().create_future()

    def protocol():
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(), lambda _, writer: streams.set_result(writer)
        )

    channel = await asyncio.to_thread(connect, hub.invite(protocol), memory)
    writer = await streams
    writer.write(b"".join(encode(*predict(0, b"x" * 100))))
    message, tail = await asyncio.to_thread(lambda: next(channel.messages()))
    assert isinstance(message, Predict)
    assert len(tail) == 100
    assert channel.begin(0)
    assert memory.batches_started() == 1
    assert (channel._arena is not None) == (kind == "local")
    channel.close()
    getattr(channel._connection, "_connection", channel._connection).close()
    writer.transport.abort()
    hub.close()
