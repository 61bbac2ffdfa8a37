"""Streams: what is sent in which order, and who waits for room."""

import asyncio

import pytest
from tests.ext.grpc.http2.talking import DATA, END, HEADERS, RESET, WHOLE, WINDOW, Client, frame, number

from modelserver.ext.grpc.http2.frames import Code


@pytest.fixture
async def client():
    """A client that accepts ten bytes of each stream, and sends requests on the first."""
    made = Client(send_timeout=10).greet(s4=10)
    made.send(made.head(1, WHOLE | END))
    return made


@pytest.fixture
def stream(client):
    return client.streams[1]


async def is_done(task):
    """Whether a task has ended by now."""
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


async def test_pieces_are_sent_in_order(client, stream):
    stream.send(b"\x88", b"one")
    stream.send(b"", b"two, three")
    stream.send(b"", b"four", b"\x88")
    client.send(frame(WINDOW, 0, 1, number(100)))
    received = client.receive()

    assert [each.kind for each in received if each.kind != DATA] == [HEADERS, HEADERS]
    assert received[0].kind == HEADERS
    assert received[-1] == (HEADERS, WHOLE | END, 1, b"\x88")
    assert client.body(received) == b"onetwo, threefour"
    stream.send(b"\x88", b"more", b"\x88")

    assert client.receive() == []


async def test_stream_has_room_once_all_is_sent(client, stream):
    stream.send(b"\x88", b"1234567890")
    await stream.room()
    stream.send(b"", b"12345")
    waiting = asyncio.create_task(stream.room())
    assert not await is_done(waiting)
    client.send(frame(WINDOW, 0, 1, number(4)))
    assert not await is_done(waiting)
    client.send(frame(WINDOW, 0, 1, number(1)))

    assert await is_done(waiting)
    assert stream.unsent == 0


@pytest.mark.parametrize("how", ["the client gives up", "the server fails", "the connection is lost"])
async def test_nobody_waits_for_room_in_vain(client, stream, how):
    stream.send(b"\x88", bytes(100), b"\x88")
    waiting = asyncio.create_task(stream.room())
    assert not await is_done(waiting)
    client.receive()
    if how == "the client gives up":
        client.send(frame(RESET, 0, 1, number(8)))
    elif how == "the server fails":
        stream.fail(Code.INTERNAL_ERROR)
    else:
        client.connection.connection_lost(None)

    assert await is_done(waiting)
    assert stream.calls[-1] == "gone"
    assert (stream.ended, stream.unsent, stream.is_ready) == (True, 0, False)
    assert client.receive() == ([(RESET, 0, 1, number(2))] if how == "the server fails" else [])


async def test_a_stream_fails_once(client, stream):
    stream.fail(Code.CANCEL)
    stream.fail(Code.INTERNAL_ERROR)
    assert client.receive() == [(RESET, 0, 1, number(8))]
    client.send(client.head(3, WHOLE | END))
    client.streams[3].send(b"", b"", b"\x88")
    client.streams[3].fail(Code.CANCEL)

    assert [each.kind for each in client.receive()] == [HEADERS]


async def test_sent_bytes_get_time_to_be_read(client, stream):
    """What was sent may lie in the client's buffers: it has a second for each 64 KiB of that, up to 8 MiB."""
    now = client.connection.now()
    stream.send(b"\x88", bytes(20))
    for sent, seconds in ((1 << 20, 16), (100 << 20, 128)):
        stream._sent, stream._moved = sent, now
        stream.check(now + 10 + seconds - 1)
        assert "gone" not in stream.calls
    stream.check(now + 10 + 128 + 1)

    assert stream.calls[-2:] == ["stalled", "gone"]


async def test_progress_gives_the_client_its_time_anew(client, stream):
    """A client has its time anew when it has taken a tenth of what waited, and 4 KiB at least."""
    client.send(client.head(3, WHOLE | END))
    for each, size, share in ((stream, 50_000, 5000), (client.streams[3], 5000, 4096)):
        each.send(b"\x88", bytes(size))
        now = each._moved = client.connection.now() - 1000
        client.send(frame(WINDOW, 0, each.id, number(share - 11)))
        assert each._moved == now
        client.send(frame(WINDOW, 0, each.id, number(1)))
        assert each._moved > now


async def test_what_a_stream_holds(client, stream):
    held = {}
    client.connection.count = held.__setitem__
    stream.send(b"\x88", b"12345")
    assert held == {}
    stream.send(b"", b"12345678")
    stream.hold(100)
    assert held == {stream: 108}
    client.send(frame(WINDOW, 0, 1, number(2)))
    assert held == {stream: 108}
    client.send(frame(WINDOW, 0, 1, number(1)))
    assert held == {stream: 100}
    assert stream.waited() == 0
    stream.send(b"", b"", b"\x88")
    assert held == {stream: 0}
    stream.hold(-100)
    assert held == {stream: 0}


async def test_a_stream_is_cut(client, stream):
    held = {}
    client.connection.count = held.__setitem__
    stream.send(b"\x88", bytes(100), b"\x88")
    client.receive()
    stream._moved -= 7
    assert stream.waited() >= 7
    stream.cut()

    assert client.receive() == [(RESET, 0, 1, number(Code.ENHANCE_YOUR_CALM))]
    assert stream.calls[-2:] == ["stalled", "gone"]
    assert held == {stream: 0}
