"""The server's side of a front end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from modelserver.frontend.link import make_pair
from modelserver.frontend.server_end import ServerEnd

if TYPE_CHECKING:
    import pytest


async def test_nonsense_from_a_front_end(caplog: pytest.LogCaptureFixture) -> None:
    """The link to it is cut, and the server lives on."""
    end = ServerEnd(None, None, print, print)  # type: ignore[arg-type]
    ours, theirs = make_pair()
    await asyncio.get_running_loop().create_unix_connection(lambda: end.link, sock=ours)
    theirs.send(b"\xff" * 20)
    await asyncio.wait_for(end.lost, 5)
    theirs.close()

    assert "invalid data" in caplog.text
    with contextlib.suppress(asyncio.CancelledError):
        await end.ready
