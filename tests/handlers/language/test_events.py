"""Events are sent as they come, those of one turn of the loop together."""

from __future__ import annotations

import asyncio
from typing import Any

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.language.events import EventStream
from modelserver_handlers.streaming import ClientsGone


class Stream:
    gate: asyncio.Event

    def __init__(self, error: BaseException | None = None) -> None:
        self.parts: list[bytes] = []
        self._error = error

    def send(self, parts: Any) -> None:
        if self._error is not None:
            raise self._error
        self.parts.append(parts[0])


def events_to(stream: Any) -> EventStream:
    """Events of the only request of a call."""
    state = BatchState(["r"])
    state.stream = stream
    return EventStream(Context("m", "/", None, 1, None, "0")._ms_of_request(state))


async def test_events_of_one_turn_are_one_part() -> None:
    stream = Stream()
    events = events_to(stream)
    events.write(b"a")
    events.write(b"b")
    await asyncio.sleep(0)
    events.write(b"c")

    assert (stream.parts, events.has_sent) == ([b"ab"], True)
    assert (events.close(), stream.parts) == (b"c", [b"ab"])
    await asyncio.sleep(0)
    assert stream.parts == [b"ab"]


async def test_source_that_never_waits_lets_others_run() -> None:
    """Or its events would be sent when it has ended, and the other requests wait for it."""
    stream = Stream()
    events = events_to(stream)
    for _ in range(5):
        events.write(bytes(5_000))
        await events.drain()

    assert len(stream.parts) == 2


async def test_client_that_has_left_ends_nothing_in_the_loop() -> None:
    events = events_to(Stream(ClientsGone()))
    events.write(b"a")
    await asyncio.sleep(0)

    assert not events.has_sent


async def test_streams_of_one_turn_are_sent_by_one_callback() -> None:
    """One that fails is reported by the loop and does not hold the others."""
    loop, reported = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _, details: reported.append(details["exception"]))
    streams = [Stream(), Stream(OSError("full")), Stream()]
    for stream in streams:
        events_to(stream).write(b"a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [stream.parts for stream in streams] == [[b"a"], [], [b"a"]]
    assert [str(error) for error in reported] == ["full"]


async def test_stream_is_behind_while_the_gate_is_closed_or_much_waits() -> None:
    stream = Stream()
    gate = stream.gate = asyncio.Event()
    events = events_to(stream)
    before = events.is_behind
    gate.set()
    open_gate = events.is_behind
    events.write(bytes(10_000))

    assert (before, open_gate, events.is_behind) == (True, False, True)
    await events.drain()
    assert (len(stream.parts), events.is_behind) == (1, False)
