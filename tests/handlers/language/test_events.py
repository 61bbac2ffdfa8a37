"""Events are sent as they come, those of one turn of the loop together."""

import asyncio

from tests.handlers import parts
from tests.waiting import until

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.language.events import EventStream
from modelserver_handlers.streaming import ClientsGone


class Stream(parts.Stream):
    gate: asyncio.Event
    departures = 0

    def send_together(self, parts):
        self.departures += 1
        super().send_together(parts)


class Left(Stream):
    def send(self, parts):
        raise ClientsGone


def events_to(stream):
    """Events of the only request of a call."""
    state = BatchState(["r"])
    state.stream = stream
    return EventStream(Context("m", "/", None, 1, None, "0")._ms_of_request(state))


async def test_first_event_is_sent_at_the_end_of_the_turn():
    stream = Stream()
    events = events_to(stream)
    events.write(b"a")
    events.write(b"b")
    await asyncio.sleep(0)
    events.write(b"c")

    assert (stream.parts, events.has_sent) == ([b"ab"], True)
    assert (events.take(), events.take(), stream.parts) == (b"c", b"", [b"ab"])


async def test_later_events_of_all_streams_leave_together():
    """Those of one stream as one part, as far apart as no client would notice."""
    streams = [Stream(), Stream()]
    both = [events_to(stream) for stream in streams]
    for events in both:
        events.write(b"a")
    await asyncio.sleep(0)
    for _ in range(2):
        for events in both:
            events.write(b"b")
    await until(lambda: all(len(stream.parts) == 2 for stream in streams))
    both[0].write(b"c")
    await until(lambda: len(streams[0].parts) == 3)

    assert [stream.parts for stream in streams] == [[b"a", b"bb", b"c"], [b"a", b"bb"]]
    assert [stream.departures for stream in streams] == [2, 0]


async def test_many_bytes_leave_in_several_departures():
    streams = [Stream() for _ in range(20)]
    all_events = [events_to(stream) for stream in streams]

    async def write(number):
        for events in all_events:
            events.write(bytes(8000))
        await until(lambda: all(len(stream.parts) == number for stream in streams))

    await write(1)
    await write(2)

    assert sum(stream.departures for stream in streams) == 3


async def test_source_that_never_waits_lets_others_run():
    """Or its events would be sent when it has ended, and the other requests wait for it."""
    stream = Stream()
    events = events_to(stream)
    for _ in range(5):
        events.write(bytes(5_000))
        await events.drain()

    assert b"".join(stream.parts) + events.take() == bytes(25_000)
    assert len(stream.parts) > 1


async def test_client_that_has_left_ends_nothing_in_the_loop():
    events = events_to(Left())
    events.write(b"a")
    await asyncio.sleep(0)

    assert not events.has_sent


async def test_stream_is_behind_while_the_gate_is_closed_or_much_waits():
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
