"""Streams: what is sent in which order, and who waits for room."""

from __future__ import annotations

import asyncio

import pytest
from tests.http2.talking import DATA, END, HEADERS, RESET, WHOLE, WINDOW, Client, Noted, frame, number

from modelserver.http2.frames import Code


@pytest.fixture
async def client() -> Client:
    """It takes ten bytes of each stream, and asks on the first."""
    made = Client(send_timeout=10).greet(s4=10)
    made.say(made.head(1, WHOLE | END))
    return made


@pytest.fixture
def stream(client: Client) -> Noted:
    return client.streams[1]


async def is_done(task: asyncio.Task[None]) -> bool:
    """Whether a task has ended by now."""
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


async def test_order(client: Client, stream: Noted) -> None:
    """Head, pieces of the body and trailers go out in the order they were given in, however they wait."""
    stream.send(b"\x88", b"one")
    stream.send(b"", b"two, three")
    stream.send(b"", b"four", b"\x88")
    client.say(frame(WINDOW, 0, 1, number(100)))
    heard = client.hear()

    assert [each.kind for each in heard if each.kind != DATA] == [HEADERS, HEADERS]
    assert heard[0].kind == HEADERS
    assert heard[-1] == (HEADERS, WHOLE | END, 1, b"\x88")
    assert client.body(heard) == b"onetwo, threefour"


async def test_what_comes_after_the_end(client: Client, stream: Noted) -> None:
    """It is not sent."""
    stream.send(b"\x88", b"", b"\x88")
    client.hear()
    stream.send(b"\x88", b"more", b"\x88")

    assert client.hear() == []


async def test_room(client: Client, stream: Noted) -> None:
    """There is room once all has been sent that was given, and at once if nothing waits."""
    stream.send(b"\x88", b"1234567890")
    await stream.room()
    stream.send(b"", b"12345")
    waiting = asyncio.create_task(stream.room())
    assert not await is_done(waiting)
    client.say(frame(WINDOW, 0, 1, number(4)))
    assert not await is_done(waiting)
    client.say(frame(WINDOW, 0, 1, number(1)))

    assert await is_done(waiting)
    assert stream.unsent == 0


@pytest.mark.parametrize("how", ["the client gives up", "the server fails", "the connection is lost"])
async def test_nobody_waits_for_room_in_vain(client: Client, stream: Noted, how: str) -> None:
    """Who waits for room goes on when nothing can be sent any more, and what waited is dropped."""
    stream.send(b"\x88", bytes(100), b"\x88")
    waiting = asyncio.create_task(stream.room())
    assert not await is_done(waiting)
    client.hear()
    if how == "the client gives up":
        client.say(frame(RESET, 0, 1, number(8)))
    elif how == "the server fails":
        stream.fail(Code.INTERNAL_ERROR)
    else:
        client.connection.connection_lost(None)

    assert await is_done(waiting)
    assert stream.calls[-1] == "gone"
    assert (stream.ended, stream.unsent, stream.is_ready) == (True, 0, False)
    assert client.hear() == ([(RESET, 0, 1, number(2))] if how == "the server fails" else [])


async def test_a_stream_fails_once(client: Client, stream: Noted) -> None:
    """Of several resets one is sent, and none after an answer."""
    stream.reset(Code.CANCEL)
    stream.reset(Code.INTERNAL_ERROR)
    assert client.hear() == [(RESET, 0, 1, number(8))]
    client.say(client.head(3, WHOLE | END))
    client.streams[3].send(b"", b"", b"\x88")
    client.streams[3].reset(Code.CANCEL)

    assert [each.kind for each in client.hear()] == [HEADERS]


async def test_time(client: Client, stream: Noted) -> None:
    """A client has the time anew with each part that it takes; a stream that has nothing to send has any."""
    now = client.connection.now()
    stream.check(now + 1000)
    stream.send(b"\x88", bytes(20))
    stream.check(now + 9)
    client.say(frame(WINDOW, 0, 1, number(1)))
    stream._moved = now + 9
    stream.check(now + 18)
    assert "gone" not in stream.calls
    stream.check(now + 20)

    assert stream.calls[-2:] == ["stalled", "gone"]
