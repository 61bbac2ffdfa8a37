from __future__ import annotations

import time

import pytest
from tests.surface.http.wire import Wire, head

from modelserver.surface.http import delivery
from modelserver.surface.http.connection import MIN_PROGRESS


@pytest.fixture
async def wire() -> Wire:
    return Wire()


async def test_an_answer_that_is_taken_slowly(wire: Wire) -> None:
    """A client that takes a tenth of what waits in the time to send, and 4 KiB at least, gets its answer."""
    wire.send(head("Content-Length: 1") + b"a")
    wire.transport.unsent = 1_000_000
    began = time.monotonic()
    for moment in range(0, 1000, 5):
        wire.protocol.check(began + moment)
        wire.transport.unsent -= max(1024, wire.transport.unsent // 30)

    assert not wire.transport.closed


async def test_an_answer_of_which_little_is_taken(wire: Wire) -> None:
    """A client that takes less than that in the time to send is cut off."""
    wire.send(head("Content-Length: 1") + b"a")
    wire.transport.unsent = 1_000_000
    began = time.monotonic()
    for moment in range(0, 30, 5):
        assert not wire.transport.closed
        wire.protocol.check(began + moment)
        wire.transport.unsent -= 15_000

    assert wire.transport.aborted


async def test_an_answer_that_grows_is_taken(wire: Wire) -> None:
    """Progress is what the client takes: a stream that adds as much as was taken is no standstill."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    exchange = wire.hot.exchanges[0]
    exchange.begin(200)
    wire.transport.unsent = 50_000
    began = time.monotonic()
    for moment in range(0, 100, 5):
        exchange.send(b"x" * MIN_PROGRESS)
        wire.protocol.check(began + moment)
    assert not wire.transport.closed

    for moment in range(100, 125, 5):
        wire.protocol.check(began + moment)
    assert wire.transport.aborted


async def test_what_clients_do_not_take_is_bounded(wire: Wire) -> None:
    """Answers count whole until they are taken whole; above the limit the connection that has waited longest
    ends.
    """
    held = wire.listener.outgoing
    held.limit = 250_000
    others = [Wire(listener=wire.listener), Wire(listener=wire.listener)]
    for each in (wire, *others):
        each.transport.unsent = 60_000
        each.hot.at_once = False
        wire.listener.hot = each.hot
        each.send(head("Content-Length: 0"))
        each.hot.exchanges[0].reply(200, b"x" * 100_000)
        if each is not others[1]:
            each.protocol.check(time.monotonic() - len(each.transport.written) % 2)

    assert wire.transport.aborted
    assert not any(each.transport.closed for each in others)
    assert held.held == 200_000
    others[0].transport.unsent = 0
    others[0].protocol.check(time.monotonic())
    assert held.held == 100_000
    others[1].transport.unsent = 5
    others[1].protocol.resume_writing()
    assert held.held == 100_000
    others[1].transport.unsent = 0
    others[1].protocol.resume_writing()
    assert held.held == 0


async def test_time_begins_with_an_answer_that_is_not_taken(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when somebody looks for the first time."""
    now = time.monotonic()
    monkeypatch.setattr(delivery, "monotonic", lambda: now)
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.transport.unsent = 60_000
    wire.hot.exchanges[0].reply(200, b"x" * 100_000)
    now += 3

    assert wire.protocol.delivery.waited() == 3


async def test_parts_that_are_not_taken_count(wire: Wire) -> None:
    """As those that wait for the client at the most, until it has taken all."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    exchange = wire.hot.exchanges[0]
    exchange.begin(200)
    exchange.send(b"x")
    assert wire.listener.outgoing.held == 0
    wire.transport.unsent = 70_000
    wire.protocol.pause_writing()
    wire.transport.unsent = 90_000
    exchange.send(b"x")
    wire.transport.unsent = 80_000
    exchange.send(b"x")

    assert wire.listener.outgoing.held == 90_000
    wire.protocol.connection_lost(None)
    assert wire.listener.outgoing.held == 0
