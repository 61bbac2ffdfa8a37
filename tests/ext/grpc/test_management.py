import asyncio

import pytest

from modelserver.ext.grpc.management import Uninterrupted


async def test_leaving_stops_no_change_whose_result_or_error_comes_back():
    async def fail():
        raise ValueError("no")

    finishing = Uninterrupted()

    assert await finishing.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await finishing.run(fail())

    gate, ended = asyncio.Event(), asyncio.Event()

    async def change():
        await gate.wait()
        ended.set()
        raise ValueError("too late to tell")

    waiting = asyncio.create_task(Uninterrupted().run(change()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()

    await asyncio.wait_for(ended.wait(), 5)
