import asyncio
import os

import pytest

from modelserver.errors import ConfigError
from modelserver.run.standby import LOCK, active


async def test_a_standby_waits_for_the_end_of_the_active_server(tmp_path):
    """The second learns who is active, and becomes it when the first ends."""
    order = []
    started, end = asyncio.Event(), asyncio.Event()

    async def first():
        async with active(tmp_path / "made", order.append):
            started.set()
            await end.wait()
            order.append("first ends")

    async def second():
        await started.wait()
        async with active(tmp_path / "made", order.append):
            order.append("second is active")

    both = asyncio.gather(first(), second())
    while not order:  # noqa: ASYNC110 - polled, as the lock is
        await asyncio.sleep(0.01)
    end.set()
    await asyncio.wait_for(both, 10)

    assert order[0].startswith(f"process {os.getpid()} on ")
    assert order[1:] == ["first ends", "second is active"]


async def test_a_folder_that_cannot_be_used(tmp_path):
    """A standby without a folder would never take over: the server does not start."""
    (tmp_path / "file").write_text("")

    with pytest.raises(
        ConfigError, match=f"standby=true: .*/{LOCK} cannot be used: Not a directory|File exists"
    ):
        async with active(tmp_path / "file", lambda _: None):
            raise AssertionError
