"""One producer for all who watch, and none while nobody does."""

import asyncio
import logging

import pytest
from tests.waiting import until

from modelserver.ext.console import broadcast
from modelserver.ext.console.broadcast import SHARE, Broadcast


class Counting:
    def __init__(self, spent=0.0):
        self.looks = 0
        self.forgotten = 0
        self.fails = False
        self.opened: list[set[str]] = []
        self._spent = spent
        self._looked = asyncio.Event()

    async def collect(self, opened):
        if self.fails:
            raise RuntimeError("broken")
        self.looks += 1
        self.opened.append(set(opened))
        self._looked.set()
        return b"change %d" % self.looks, self._spent

    async def seen(self, looks):
        while self.looks < looks:
            self._looked.clear()
            await self._looked.wait()

    def whole(self):
        return b"all %d" % self.looks

    def forget(self):
        self.forgotten += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Events come a hundred times as often."""
    monkeypatch.setattr(broadcast, "PAUSE", 0.005)


async def next_of(events):
    return await asyncio.wait_for(anext(events), 5.0)


async def test_viewers_share_one_producer_which_ends_with_the_last():
    """Each gets everything first, then the same changes; afterwards nothing is collected."""
    source = Counting()
    shared = Broadcast(source)
    assert source.looks == 0
    one, two = shared.watch(lambda: True), shared.watch(lambda: True)
    firsts = [await next_of(one), await next_of(two)]
    changes = [await next_of(one), await next_of(two)]
    await one.aclose()
    await two.aclose()
    await until(lambda: source.forgotten)
    looks = source.looks
    await asyncio.sleep(0.05)

    assert all(first.startswith(b"all ") for first in firsts)
    assert all(change.startswith(b"change ") for change in changes)
    assert (source.looks, source.forgotten) == (looks, 1)


async def test_a_viewer_who_reads_slowly_gets_everything_again():
    """Changes that it missed are not kept for it."""
    source = Counting()
    events = Broadcast(source).watch(lambda: True)
    await next_of(events)
    looks = source.looks
    await asyncio.wait_for(source.seen(looks + 3), 5.0)

    assert (await next_of(events)).startswith(b"all ")
    await events.aclose()


async def test_collecting_takes_less_than_a_hundredth_of_a_core():
    """After a look of 1 ms the next one is 125 ms away, however short the usual pause is."""
    source = Counting(spent=0.001)
    events = Broadcast(source).watch(lambda: True)
    began = asyncio.get_running_loop().time()
    await next_of(events)
    await next_of(events)
    await next_of(events)

    assert asyncio.get_running_loop().time() - began >= 2 * 0.001 / SHARE * 0.99
    assert SHARE < 0.01
    await events.aclose()


async def test_a_stream_does_not_outlast_its_token():
    """The next event says so, and is the last."""
    valid = True
    events = Broadcast(Counting()).watch(lambda: valid)
    await next_of(events)
    valid = False

    assert [event async for event in events] == [b"event: expired\ndata: \n\n"]


async def test_closing_ends_the_streams():
    """A server that stops does not wait for those who watch; later ones get nothing."""
    shared = Broadcast(Counting())
    events = shared.watch(lambda: True)
    await next_of(events)
    shared.close()

    assert [event async for event in events][1:] == []
    assert [event async for event in shared.watch(lambda: True)] == []


async def test_a_failure_ends_the_streams(caplog):
    """The log has the cause; who comes back is served again."""
    source = Counting()
    shared = Broadcast(source)
    source.fails = True
    with caplog.at_level(logging.ERROR):
        assert [event async for event in shared.watch(lambda: True)] == []
    source.fails = False
    events = shared.watch(lambda: True)

    assert "The console's events could not be made" in caplog.text
    assert await next_of(events) == b"all 1"
    await events.aclose()


async def test_pages_that_are_open_are_known():
    """A viewer names one when it begins, and others later; who left is not asked for any more."""
    source = Counting()
    shared = Broadcast(source)
    one, two = shared.watch(lambda: True, "one", "a/1.0"), shared.watch(lambda: True)
    await next_of(one)
    await next_of(two)
    shared.open("one", "b/1.0")
    shared.open("nobody", "c/1.0")
    await asyncio.wait_for(source.seen(source.looks + 2), 5.0)
    before, now = source.opened[0], source.opened[-1]
    await one.aclose()
    await asyncio.wait_for(source.seen(source.looks + 2), 5.0)

    assert before == {"a/1.0"}
    assert now == {"b/1.0", ""}
    assert source.opened[-1] == {""}
    await two.aclose()


async def test_a_viewer_who_comes_back_replaces_itself():
    """The stream that it had before ends, and its end leaves the new one alone."""
    source = Counting()
    shared = Broadcast(source)
    older = shared.watch(lambda: True, "one")
    await next_of(older)
    newer = shared.watch(lambda: True, "one")
    await next_of(newer)

    assert len([event async for event in older]) <= 1
    assert (await next_of(newer)).startswith((b"all ", b"change "))
    shared.open("one", "a/1.0")
    await asyncio.wait_for(source.seen(source.looks + 2), 5.0)
    assert source.opened[-1] == {"a/1.0"}
    await newer.aclose()
