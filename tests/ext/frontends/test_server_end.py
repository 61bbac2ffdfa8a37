"""The server's side of a front end."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.engine.wire.arena import LARGE
from modelserver.ext.frontends import messages
from modelserver.ext.frontends.link import Link, make_pair
from modelserver.ext.frontends.server_end import ServerEnd
from modelserver.surface.http.exchange import Target


async def test_nonsense_cuts_the_link(caplog: pytest.LogCaptureFixture) -> None:
    """The link to it is cut, and the server lives on."""
    end = ServerEnd(None, None, print, print)  # type: ignore[arg-type]
    ours, other = make_pair()
    await asyncio.get_running_loop().create_unix_connection(lambda: end.link, sock=ours)
    other.send(b"\xff" * 20)
    await asyncio.wait_for(end.lost, 5)
    other.close()

    assert "invalid data" in caplog.text
    with contextlib.suppress(asyncio.CancelledError):
        await end.ready


@pytest.mark.parametrize(
    ("unsent", "size", "status"), [(11, LARGE, 503), (10, LARGE, 200), (11, LARGE - 1, 200)]
)
async def test_large_answer_for_a_front_end_that_is_behind_gets_503(
    monkeypatch: pytest.MonkeyPatch, unsent: int, size: int, status: int
) -> None:
    """They become refusals while more waits for it than may; others are sent."""
    monkeypatch.setattr(Link, "unsent", property(lambda _: unsent))
    statuses: list[int] = []
    hot: Any = SimpleNamespace(
        find=lambda _: Target("/predictions/m", b"", "/predictions/m"),
        serve=lambda exchange: exchange.reply(200, b"x" * size),
    )
    end = ServerEnd(hot, None, statuses.append, print, most=10)  # type: ignore[arg-type]
    sent: list[tuple[Any, bytes]] = []
    end.link.send = lambda message, body=b"": sent.append((message, body))  # type: ignore[method-assign]
    end._ask(messages.Ask(1, 0, b"/predictions/m", b"POST", "1.1", b"\x90", "", b"", 0, "id", False), b"")
    ((message, body),) = sent

    assert [message.status] == statuses == [status]
    assert (b"max_outgoing_bytes=10" in body) is (status == 503)
    assert end.exchanges == {}
