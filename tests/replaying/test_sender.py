"""Requests sent to servers of the tests' own, which behave as they should or do not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from modelserver.errors import ConfigError
from modelserver.replaying.sender import Place, Sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Batch-Id: b\r\nx-batch-size: 3\r\nother: 1\r\n\r\nok"


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[Place]:
    """A server that does this for each connection."""

    tasks: list[asyncio.Task[None]] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield Place("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def answering(*answers: bytes) -> Serve:
    """Gives these answers on each connection, and closes it; the last one again and again if there is one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        while len(answers) == 1:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[0])

    return serve


def asked(place: Place, make_call, count: int) -> list[bytes]:
    """So many requests without a body."""
    return [place.request(make_call(body=b""))] * count


async def test_answers_are_read(make_call) -> None:
    """Status, body and the lines about batch and timing, also of answers in parts and after interim ones."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with listening(answering(OK, chunked, interim + OK)) as place:
        answers = await Sender(place, 1, 5.0).send(asked(place, make_call, 3), None)

    assert [(a.status, a.body, a.fault) for a in answers] == [
        (200, b"ok", ""),
        (200, b"abc", ""),
        (200, b"ok", ""),
    ]
    assert answers[0].lines == b"x-batch-id: b\r\nx-batch-size: 3\r\n"


async def test_requests_are_sent_when_they_are_due(make_call) -> None:
    """A request that waits for an answer does not hold up the next; latency counts from the due time."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(OK)

    async with listening(slow) as place:
        many = await Sender(place, 10, 5.0).send(asked(place, make_call, 3), [0.0, 0.05, 0.1])
        one = await Sender(place, 1, 5.0).send(asked(place, make_call, 2), [0.0, 0.0])

    assert [round(answer.sent, 2) for answer in many] == pytest.approx([0.0, 0.05, 0.1], abs=0.03)
    assert one[1].seconds > 0.35 > one[0].seconds


async def test_a_connection_that_the_server_closed_meanwhile(make_call) -> None:
    """The request is sent again on another one, as no part of an answer came."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    async with listening(once) as place:
        answers = await Sender(place, 1, 5.0).send(asked(place, make_call, 3), None)

    assert [answer.status for answer in answers] == [200, 200, 200]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", "the connection was closed"),
        (b"SMTP ready\r\n\r\n", "unreadable answer"),
    ],
)
async def test_answers_that_do_not_come(make_call, answer, fault) -> None:
    """Are told, one for each request, and others go on."""
    async with listening(answering(answer, b"")) as place:
        began = time.monotonic()
        answers = await Sender(place, 2, 0.5).send(asked(place, make_call, 3), None)

    assert time.monotonic() - began < 5
    assert all(each.status == 0 and (fault in each.fault or "no answer" in each.fault) for each in answers)


async def test_nobody_listens(make_call) -> None:
    """Every request is told why it could not be sent."""
    async with listening(answering(OK)) as place:
        pass
    answers = await Sender(place, 4, 5.0).send(asked(place, make_call, 6), None)

    assert ["cannot connect" in answer.fault for answer in answers] == [True] * 6


def test_the_bytes_of_a_request(make_call) -> None:
    """Recorded headers come first, those given next; length and host are those of now."""
    place = Place.of("http://[::1]:80/prefix/", [("authorization", "Bearer x")], None)

    assert place.request(make_call(target="/p?q=1", body=b"abc")) == (
        b"POST /prefix/p?q=1 HTTP/1.1\r\nhost: [::1]:80\r\ncontent-type: text/plain\r\n"
        b"authorization: Bearer x\r\ncontent-length: 3\r\n\r\nabc"
    )


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://x:99999", "http://x?y=1", "http://"])
def test_unusable_urls(url) -> None:
    """Are refused."""
    with pytest.raises(ConfigError, match="--to="):
        Place.of(url, [], None)


def test_unusable_authorities(tmp_path) -> None:
    """A file without certificates is refused."""
    with pytest.raises(ConfigError, match="--ca-file="):
        Place.of("https://x", [], str(tmp_path / "none.pem"))
