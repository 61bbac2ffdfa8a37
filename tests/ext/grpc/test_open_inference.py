import asyncio
import contextlib

import pytest

from modelserver.ext.grpc.open_inference import in_order


async def numbers(count, read=None):
    for number in range(count):
        if read is not None:
            read.append(number)
        yield number


async def test_results_are_in_order():
    """The first result comes first, however late it is; the others work meanwhile."""
    gates = [asyncio.Event() for _ in range(3)]
    ended = []

    async def work(number):
        await gates[number].wait()
        ended.append(number)
        gates[number - 1].set()
        return number * 10

    gates[2].set()

    assert [result async for result in in_order(numbers(3), work, 3)] == [0, 10, 20]
    assert ended == [2, 1, 0]


async def test_window_limits_what_is_read():
    read = []

    async def work(number):
        return number

    results = in_order(numbers(100, read), work, 4)
    assert await anext(results) == 0
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(read) <= 6
    assert [result async for result in results] == list(range(1, 100))


async def test_failures_have_their_turn():
    """What ``work`` raises comes after the results before it; what the items raise comes last."""

    async def work(number):
        if number == 1:
            raise ValueError("one")
        return number

    async def broken():
        yield 0
        raise OSError("gone")

    results = in_order(numbers(3), work, 8)
    assert await anext(results) == 0
    with pytest.raises(ValueError, match="one"):
        await anext(results)
    results = in_order(broken(), work, 8)
    assert await anext(results) == 0
    with pytest.raises(OSError, match="gone"):
        await anext(results)


async def test_leaving_ends_the_work():
    cancelled = []

    async def work(number):
        if number == 0:
            return 0
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    results = in_order(numbers(3), work, 8)
    assert await anext(results) == 0
    for _ in range(5):
        await asyncio.sleep(0)
    await results.aclose()
    for _ in range(5):
        await asyncio.sleep(0)

    assert cancelled == [1, 2]


async def test_items_can_be_closed_while_the_next_is_awaited():
    waits = asyncio.Event()

    async def endless():
        yield 1
        await waits.wait()

    async def work(number):
        return number

    async def take():
        async with contextlib.aclosing(endless()) as items:
            async for _ in in_order(items, work, 8):
                pass

    taking = asyncio.ensure_future(take())
    for _ in range(5):
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
