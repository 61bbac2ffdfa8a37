import time

import pytest
from tests.surface.http.wire import Wire, post

from modelserver.surface.http import connection
from modelserver.surface.http.connection import MIN_PROGRESS


@pytest.mark.parametrize(
    ("taken", "aborted"),
    [(lambda unsent: max(1024, unsent // 30), False), (lambda unsent: 15_000, True)],
    ids=["enough", "little"],
)
async def test_client_that_takes_little_of_its_response_is_cut_off(wire, taken, aborted):
    """It must take a tenth of what waits in the time to send, and 4 KiB at least."""
    wire.send(post(b"a"))
    wire.transport.unsent = 1_000_000
    started = time.monotonic()
    for moment in range(0, 1000, 5):
        assert not wire.transport.closed
        wire.connection.check(started + moment)
        if wire.transport.aborted:
            break
        wire.transport.unsent -= taken(wire.transport.unsent)

    assert wire.transport.aborted == aborted


async def test_response_that_grows_as_it_is_taken_makes_progress(busy):
    """Progress is what the client takes: a stream that adds as much as was taken is no standstill."""
    busy.send(post())
    exchange = busy.hot.exchanges[0]
    exchange.begin(200)
    busy.transport.unsent = 50_000
    started = time.monotonic()
    for moment in range(0, 100, 5):
        exchange.send(b"x" * MIN_PROGRESS)
        busy.connection.check(started + moment)
    assert not busy.transport.closed

    for moment in range(100, 125, 5):
        busy.connection.check(started + moment)
    assert busy.transport.aborted


async def test_responses_that_are_not_taken_are_bounded(busy, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    held = busy.listener.outgoing
    held.limit = 250_000
    others = [Wire(listener=busy.listener), Wire(listener=busy.listener)]
    for number, each in enumerate((busy, *others)):
        each.transport.unsent = 60_000
        each.send(post())
        busy.hot.exchanges[number].reply(200, b"x" * 100_000)
        if each is not others[1]:
            each.connection.check(now)
        now += 1

    assert busy.transport.aborted
    assert not any(each.transport.closed for each in others)
    assert held.held == 200_000
    others[0].transport.unsent = 0
    others[0].connection.check(now)
    assert held.held == 100_000
    for unsent, left in ((5, 100_000), (0, 0)):
        others[1].transport.unsent = unsent
        others[1].protocol.resume_writing()
        assert held.held == left


async def test_time_starts_with_a_response_that_is_not_taken(busy, monkeypatch):
    """It does not start when it is first checked."""
    now = time.monotonic()
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    busy.send(post())
    busy.transport.unsent = 60_000
    busy.hot.exchanges[0].reply(200, b"x" * 100_000)
    now += 3

    assert busy.connection.delivery.waited() == pytest.approx(3)


async def test_parts_count_by_the_most_that_waited(busy):
    busy.send(post())
    exchange = busy.hot.exchanges[0]
    exchange.begin(200)
    exchange.send(b"x")
    assert busy.listener.outgoing.held == 0
    busy.transport.unsent = 70_000
    busy.protocol.pause_writing()
    for unsent in (90_000, 80_000):
        busy.transport.unsent = unsent
        exchange.send(b"x")

    assert busy.listener.outgoing.held == 90_000
    busy.protocol.connection_lost(None)
    assert busy.listener.outgoing.held == 0
