import asyncio
from typing import Any

import pytest

from modelserver.ext.frontends.link import Link, make_pair
from modelserver.ext.frontends.messages import End, ReplyPart, to_frontend_decoder


class Side:
    def __init__(self):
        self._came: asyncio.Queue[Any] = asyncio.Queue()
        self.lost = asyncio.get_running_loop().create_future()
        self.link: Link[Any] = Link(
            to_frontend_decoder,
            lambda *value: self._came.put_nowait(value),
            lambda: self.lost.set_result(None),
        )

    async def come(self):
        message, body = await asyncio.wait_for(self._came.get(), 10)
        return message.number, body


@pytest.fixture
async def ends():
    loop, pair = asyncio.get_running_loop(), (Side(), Side())
    for end, connection in zip(pair, make_pair(), strict=True):
        await loop.create_connection(lambda end=end: end.link, sock=connection)
    yield pair
    for end in pair:
        end.link.abort()


async def test_messages_of_a_turn_arrive_in_order(ends):
    here, there = ends
    here.link.send(ReplyPart(1, 4), b"body")
    here.link.send(End(2, True))
    there.link.send(End(3, True))

    assert [await there.come(), await there.come()] == [(1, b"body"), (2, b"")]
    assert await here.come() == (3, b"")

    here.link.send(ReplyPart(1, 1 << 20), bytes(1 << 20))

    assert await there.come() == (1, bytes(1 << 20))


async def test_both_sides_learn_about_the_end(ends):
    here, there = ends
    here.link.send(End(1, True))
    here.link.close()
    await asyncio.wait_for(asyncio.gather(here.lost, there.lost), 10)
    here.link.send(End(2, True))

    assert await there.come() == (1, b"")


async def test_nonsense_ends_it(ends, caplog):
    """The log says that it made no sense."""
    here, there = ends
    here.link._transport.write(b"\xff" * 64)
    await asyncio.wait_for(there.lost, 10)

    assert "invalid data" in caplog.text
