"""Calls: bodies to messages, answers to frames, and how long either may take."""

import asyncio
import gzip
import logging

import pytest
from tests.ext.grpc.calling import services
from tests.ext.grpc.http2.talking import (
    DATA,
    END,
    HEADERS,
    RESET,
    SETTINGS,
    WHOLE,
    WINDOW,
    Client,
    frame,
    number,
)
from tests.waiting import until

from modelserver.ext.grpc.call import GrpcPort
from modelserver.ext.grpc.framing import CallRefused, message_framed
from modelserver.ext.grpc.heads import read_head
from modelserver.ext.grpc.http2.connection import Http2Connection, Http2Listener
from modelserver.ext.grpc.http2.frames import Code
from modelserver.ext.grpc.http2.stream import Http2Limits
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing

LARGEST = 100_000


class Method:
    """Answers with the message of the request; notes how calls end."""

    streams = False

    def __init__(self):
        self.requests: list[bytes] = []
        self.endings: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    def begin(self, call, body):
        return self._serve(call, body)

    async def _serve(self, call, body):
        self.requests.append(body)
        try:
            await self.go_on.wait()
            call.answer(body)
            self.endings.append("answered")
        except asyncio.CancelledError:
            self.endings.append("cancelled")
            call.finish(StatusCode.CANCELLED)
            raise


class Talk(Method):
    """Answers each message of a stream."""

    streams = True

    async def _serve(self, call, body):
        try:
            async for message in call.messages():
                self.requests.append(message)
                await self.go_on.wait()
                call.write(message)
                await call.room()
            call.finish(StatusCode.OK)
        except Exception as error:  # noqa: BLE001 - noted
            self.endings.append(str(error))
            call.finish(StatusCode.ABORTED)


class Caller(Client):
    """A client that calls; it takes 64 KiB, and so does the server unless told otherwise."""

    def __init__(self, intake=10 << 20, **limits):
        self.unary, self.talk, self.intake = Method(), Talk(), Intake(intake)
        self.outgoing = Outgoing(1 << 20)
        methods = {"s/unary": self.unary, "s/talk": self.talk}
        port = GrpcPort(methods, LARGEST, services(self.intake, self.outgoing))
        self._port = port
        super().__init__(**limits)
        self.listener.make, self.listener.read = port.make, read_head
        self.connection = Http2Connection(
            Http2Listener(port.make, read_head, Http2Limits(**limits), self.outgoing.count)
        )
        self.connection.connection_made(self.transport)
        self.greet()

    def call(self, stream, path="s/unary", flags=WHOLE, **fields):
        more = [(name.replace("_", "-"), value) for name, value in fields.items()]
        head = [(":method", "POST"), (":scheme", "http"), (":path", f"/{path}")]
        return self.head(stream, flags, [*head, ("content-type", "application/grpc"), *more])

    async def received(self):
        """The frames that have come by now: (stream, fields) or (stream, body), or (stream, code)."""
        for _ in range(5):
            await asyncio.sleep(0)
        results = []
        for each in self.receive():
            if each.kind == HEADERS:
                results.append((each.stream, dict(self.fields(each.payload))))
            elif each.kind == DATA:
                results.append((each.stream, each.payload))
            elif each.kind == RESET:
                results.append((each.stream, Code(int.from_bytes(each.payload, "big"))))
        return results

    async def status(self, stream=1):
        for of, data in await self.received():
            if of == stream and isinstance(data, dict) and "grpc-status" in data:
                return StatusCode(int(data["grpc-status"])), data.get("grpc-message", "")
        raise AssertionError("the call has not ended")


@pytest.fixture
async def caller():
    return Caller()


OK = [{":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity,deflate,gzip"}]


@pytest.mark.parametrize("size", [0, 1, 5000])
@pytest.mark.parametrize("pieces", [1, 2, 5])
async def test_message_is_answered(caller, size, pieces):
    """However the message comes, the call is served once it is whole, and nothing is counted any more."""
    body = message_framed(b"a" * size)
    step = -(-len(body) // pieces)
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    caller.send(caller.call(1), *(frame(DATA, 0, 1, part) for part in parts[:-1]))
    assert caller.unary.requests == []
    caller.send(frame(DATA, END, 1, parts[-1]))

    result = await caller.received()
    assert result == [(1, *OK), (1, body), (1, {"grpc-status": "0"})]
    assert caller.unary.requests == [b"a" * size]
    assert caller.intake.held == 0


async def test_call_may_end_with_an_empty_frame(caller):
    caller.send(caller.call(1), frame(DATA, 0, 1, message_framed(b"abc")))
    assert caller.intake.held == 3
    caller.send(frame(DATA, END, 1))
    await caller.received()

    assert caller.unary.requests == [b"abc"]
    assert caller.intake.held == 0


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([(END, b"")], StatusCode.INTERNAL),
        ([(END, b"\0\0\0")], StatusCode.INTERNAL),
        ([(END, message_framed(b"abc")[:-1])], StatusCode.INTERNAL),
        ([(END, message_framed(b"abc") + b"x")], StatusCode.INTERNAL),
        ([(0, message_framed(b"abc")), (0, message_framed(b"abc"))], StatusCode.INTERNAL),
        ([(0, message_framed(b"abc")), (END, b"\0")], StatusCode.INTERNAL),
        ([(END, b"\1\0\0\0\1a")], StatusCode.INTERNAL),
        ([(0, b"\2\0\0\0\1a")], StatusCode.INTERNAL),
        ([(0, b"\0" + number(LARGEST + 1))], StatusCode.RESOURCE_EXHAUSTED),
        ([(0, b"\0\xff\xff\xff\xff")], StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_body_that_is_no_message_ends_its_call(caller, messages, code):
    caller.send(caller.call(1), *(frame(DATA, flags, 1, piece) for flags, piece in messages))
    assert (await caller.status())[0] is code
    assert caller.intake.held == 0
    assert caller.unary.requests == []
    caller.send(caller.call(3), frame(DATA, END, 3, message_framed(b"x")))

    assert (await caller.status(3))[0] is StatusCode.OK


async def test_unknown_call_ends_at_once(caller):
    caller.send(caller.call(1, "s/none"), caller.call(3, flags=WHOLE | END))
    caller.send(caller.head(5, WHOLE | END, [(":method", "GET"), (":scheme", "http"), (":path", "/")]))
    caller.send(frame(DATA, END, 1, message_framed(b"not read")))
    result = await caller.received()

    codes = {stream: data.get("grpc-status") for stream, data in result if isinstance(data, dict)}
    assert codes == {1: "12", 3: "13", 5: None}
    assert (5, {":status": "405"}) in result
    assert caller.connection.streams == {}


async def test_compressed_call_is_answered(caller):
    packed = gzip.compress(b"a" * 1000)
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    caller.send(caller.call(1, grpc_encoding="gzip"), frame(DATA, END, 1, body))
    caller.send(
        caller.call(3, "s/talk", grpc_encoding="gzip"), frame(DATA, END, 3, message_framed(b"plain") + body)
    )
    result = await caller.received()

    assert caller.unary.requests == [b"a" * 1000]
    assert caller.talk.requests == [b"plain", b"a" * 1000]
    assert [stream for stream, data in result if data == {"grpc-status": "0"}] == [1, 3]
    caller.intake.limit = LARGEST - 1
    caller.send(caller.call(5, grpc_encoding="gzip"), frame(DATA, END, 5, body))
    assert (await caller.status(5))[0] is StatusCode.UNAVAILABLE
    assert caller.intake.held == 0


async def test_bad_message_in_a_stream_is_an_error_of_its_method(caller):
    caller.send(caller.call(1, "s/talk"), frame(DATA, 0, 1, message_framed(b"a") + b"\3\0\0\0\0"))
    assert (await caller.status())[0] is StatusCode.ABORTED
    assert caller.talk.requests == [b"a"]
    assert caller.talk.endings == ["A message has the unknown flags 3."]


async def test_too_much_incoming_is_refused():
    caller = Caller(intake=100_000)
    for each in range(1, 7, 2):
        caller.send(caller.call(each), frame(DATA, 0, each, message_framed(b"a" * 90_000)[:40_000]))
    code, text = await caller.status(5)

    assert code is StatusCode.UNAVAILABLE
    assert "max_incoming_bytes=100000" in text
    assert caller.intake.held == 2 * (40_000 - 5)
    for each in (1, 3):
        caller.send(frame(RESET, 0, each, number(8)))
    assert caller.intake.held == 0


async def test_streams_count_too():
    """Messages that a method has not read yet are bounded in the same way."""
    caller = Caller(intake=50_000)
    caller.talk.go_on.clear()
    caller.send(caller.call(1, "s/talk"), frame(DATA, 0, 1, message_framed(b"a")))
    await caller.received()
    caller.send(*(frame(DATA, 0, 1, message_framed(bytes(20_000))) for _ in range(3)))
    caller.talk.go_on.set()
    await caller.received()

    assert "max_incoming_bytes" in caller.talk.endings[0]
    assert caller.intake.held == 0


async def test_streams_wait_for_their_method():
    caller = Caller(window=10_000)
    caller.talk.go_on.clear()
    caller.send(caller.call(1, "s/talk"), *(frame(DATA, 0, 1, message_framed(bytes(995))) for _ in range(10)))
    await asyncio.sleep(0)
    assert [each for each in caller.receive() if each.kind == WINDOW and each.stream] == []
    caller.talk.go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)

    received = caller.receive()
    assert sum(int.from_bytes(e.payload, "big") for e in received if e.kind == WINDOW and e.stream) == 10_000
    assert len(caller.talk.requests) == 10
    # The window is as it was, not larger.
    assert caller.connection.streams[1].receives == 10_000


@pytest.mark.parametrize("path", ["s/unary", "s/talk"])
async def test_message_may_be_larger_than_the_window(path):
    caller = Caller(window=10_000)
    body = message_framed(bytes(LARGEST))
    caller.send(caller.call(1, path))
    sent = 0
    while sent < len(body):
        size = min(caller.connection.streams[1].receives, 4000)
        assert size > 0
        caller.send(frame(DATA, END if sent + size >= len(body) else 0, 1, body[sent : sent + size]))
        sent += size
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)

    assert (caller.unary.requests or caller.talk.requests) == [bytes(LARGEST)]


async def test_deadline_cancels_the_call(caller):
    caller.unary.go_on.clear()
    caller.send(caller.call(1, grpc_timeout="20m"), frame(DATA, END, 1, message_framed(b"a")))
    caller.send(caller.call(3, "s/talk", grpc_timeout="20m"))

    await until(lambda: caller.unary.endings == ["cancelled"])
    await until(lambda: caller.connection.streams.keys() <= {3})


async def test_deadlines_are_parsed(caller):
    """Malformed ones are an error at once; otherwise clients would be served without a deadline."""
    caller.send(caller.call(1, grpc_timeout="1s"), frame(DATA, END, 1, message_framed(b"a")))
    assert await caller.status() == (StatusCode.INTERNAL, "malformed grpc-timeout")
    assert caller.unary.requests == []

    caller.send(caller.call(3, grpc_timeout="1H"), frame(DATA, END, 3, message_framed(b"a")))
    call = caller.connection.streams[3]
    assert call._deadline is not None
    await caller.received()

    assert call._deadline is None


async def test_call_of_a_client_that_gives_up_is_cancelled(caller):
    caller.unary.go_on.clear()
    caller.send(
        caller.call(1),
        frame(DATA, END, 1, message_framed(b"a")),
        caller.call(3),
        frame(DATA, 0, 3, b"\0\0\0\1\0a"),
    )
    await asyncio.sleep(0)
    caller.send(frame(RESET, 0, 1, number(8)), frame(RESET, 0, 3, number(8)))
    assert await caller.received() == []
    assert caller.unary.endings == ["cancelled"]
    assert caller.intake.held == 0


@pytest.mark.parametrize("how", ["lost", "late"])
async def test_thousands_of_calls_end_in_turns(how, monkeypatch):
    caller = Caller()
    caller.unary.go_on.clear()
    for each in range(1, 401, 2):
        fields = {"grpc_timeout": "1H"} if how == "late" else {}
        caller.send(caller.call(each, **fields), frame(DATA, END, each, message_framed(b"a")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(caller.unary.requests) == 200
    if how == "lost":
        caller.connection.connection_lost(None)
    else:
        # All deadlines pass in one turn.
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda real=loop.time: real() + 3601)
    most = turns = 0
    while len(caller.unary.endings) < 200:
        before = len(caller.unary.endings)
        await asyncio.sleep(0)
        most = max(most, len(caller.unary.endings) - before)
        turns += 1

    assert most <= 64
    assert caller.unary.endings == ["cancelled"] * 200


async def test_upload_that_stops_ends_its_call():
    caller = Caller(receive_timeout=10)
    caller.send(caller.call(1), frame(DATA, 0, 1, b"\0\0"), caller.call(3, "s/talk"), caller.call(5))
    slow, streaming, silent = caller.connection.streams.values()
    for call in (slow, streaming, silent):
        call._received_at -= 11
    caller.send(frame(DATA, 0, 1, b"\0"))
    caller.connection.check(caller.connection.now())
    assert (await caller.status(5))[0] is StatusCode.DEADLINE_EXCEEDED
    assert sorted(caller.connection.streams) == [1, 3]
    slow._received_at -= 11
    caller.connection.check(caller.connection.now())
    assert (await caller.status(1))[0] is StatusCode.DEADLINE_EXCEEDED
    assert sorted(caller.connection.streams) == [3]


@pytest.mark.parametrize("part", [1, 3, 500])
async def test_message_of_a_stream_that_stops_ends_its_call(part):
    """A stream may be silent between its messages, but not within one, which would be held for ever."""
    caller = Caller(receive_timeout=10)
    caller.send(caller.call(1, "s/talk"), frame(DATA, 0, 1, message_framed(b"whole")))
    await caller.received()
    (call,) = caller.connection.streams.values()
    call._received_at -= 11
    caller.connection.check(caller.connection.now())
    assert await caller.received() == []
    caller.send(frame(DATA, 0, 1, message_framed(bytes(1000))[:part]))
    caller.connection.check(caller.connection.now())
    assert await caller.received() == []
    call._received_at -= 11
    caller.connection.check(caller.connection.now())
    await caller.received()

    assert caller.talk.requests == [b"whole"]
    assert "Nothing of the message came" in caller.talk.endings[0]
    assert caller.connection.streams == {}
    assert caller.intake.held == 0


async def test_answer_that_is_not_read_ends(caller, caplog):
    caller.send(
        frame(SETTINGS, 0, 0, b"\0\4" + number(10)),
        caller.call(1),
        frame(DATA, END, 1, message_framed(bytes(1000))),
    )
    await caller.received()
    call = caller.connection.streams[1]
    assert call.unsent == 995
    assert caller.outgoing.held == 1005
    with caplog.at_level(logging.WARNING):
        caller.connection.check(caller.connection.now() + 100)

    assert await caller.received() == [(1, Code.ENHANCE_YOUR_CALM)]
    assert call.unsent == 0
    assert caller.outgoing.held == 0
    assert "The answer of s/unary to 127.0.0.1:5000 ends: its client reads too little" in caplog.text


async def test_answer_without_room_is_refused(caller):
    caller.send(caller.call(1, "s/talk"))
    call = caller.connection.streams[1]
    call.check_room()
    caller.outgoing.add(1 << 20)
    with pytest.raises(CallRefused, match="max_outgoing_bytes=1048576") as refused:
        call.check_room()

    assert refused.value.code is StatusCode.UNAVAILABLE


async def test_stream_ends_when_the_server_stops(caller):
    caller.send(caller.call(1, "s/talk"), frame(DATA, 0, 1, message_framed(b"a")))
    await caller.received()
    caller.connection.listener.connections.add(caller.connection)
    caller.connection.listener.refuse()

    assert (await caller.status())[0] is StatusCode.OK
