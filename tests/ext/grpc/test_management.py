"""Changes that are done to their end."""

from __future__ import annotations

import asyncio

import pytest

from modelserver.ext.grpc.management import Uninterrupted


async def test_results_and_errors_come_back() -> None:
    """Who waits gets either."""

    async def fail() -> None:
        raise ValueError("no")

    finishing = Uninterrupted()

    assert await finishing.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await finishing.run(fail())


async def test_leaving_does_not_stop_it() -> None:
    """A cancelled caller leaves the change running; its failure then is nobody's."""
    gate, ended = asyncio.Event(), asyncio.Event()

    async def change() -> None:
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
