import asyncio
import socket

import pytest
from tests.ext.cluster.conversation import predict

from modelserver.engine.wire.arena import Arena
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Predict
from modelserver.engine.worker.channel import ServerChannel
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.ext.cluster.node.worker import connect
from modelserver.surface.tls.context import Certificate


@pytest.fixture
def memory():
    made = Arena.create()
    if made is None:
        pytest.skip("memory cannot be shared here")
    yield made
    made.close()


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

    agent, worker = socket.socketpair()
    Arena.send(agent, hub.invite(protocol).text().encode(), memory)
    agent.close()
    channel = ServerChannel(worker, connect)
    received = asyncio.create_task(asyncio.to_thread(lambda: next(channel.messages())))
    writer = await streams
    writer.write(b"".join(encode(*predict(0, b"x" * 100))))
    message, tail = await received
    assert isinstance(message, Predict)
    assert len(tail) == 100
    assert channel.begin(0)
    assert memory.batches_started() == 1
    assert (channel._arena is not None) == (kind == "local")
    channel.close()
    getattr(channel._connection, "_connection", channel._connection).close()
    writer.transport.abort()
    hub.close()
