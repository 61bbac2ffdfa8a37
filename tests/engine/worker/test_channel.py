import os
import socket
import sys
import threading

import msgspec
import pytest

from modelserver.engine.wire import messages as wire
from modelserver.engine.wire.arena import LARGE, Arena, ProtocolError
from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.worker.channel import ServerChannel


@pytest.fixture
def ends():
    server_end, worker_end = socket.socketpair()
    with server_end, worker_end:
        yield server_end, worker_end


def test_forked_processes_do_not_speak_for_the_worker(ends, monkeypatch):
    """In a child of the handler's the connection is at its end, and answering ends the child (F45)."""
    server_end, worker_end = ends
    monkeypatch.setattr(os, "_exit", sys.exit)
    with worker_end.dup() as of_the_worker:
        channel = ServerChannel(worker_end)
        channel.disown()

        assert list(channel.messages()) == []
        with pytest.raises(SystemExit):
            channel.send(wire.Pong())
        server_end.setblocking(False)
        with pytest.raises(BlockingIOError):
            server_end.recv(1)
        of_the_worker.send(b"x")
        assert server_end.recv(1) == b"x"


def test_closing_ends_the_wait_of_another_thread(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    waiting = threading.Thread(target=list, args=(channel.messages(),))
    waiting.start()
    channel.close()
    waiting.join(5)
    channel.close()

    assert not waiting.is_alive()
    assert server_end.recv(1) == b""


def test_garbage_from_the_server_is_a_protocol_error(ends):
    server_end, worker_end = ends
    server_end.sendall(b"\x00" * 8)

    with pytest.raises(ProtocolError):
        next(ServerChannel(worker_end).messages())


@pytest.mark.parametrize("sizes", [[], [10, 0, 20], [3_000_000, 0, 1], [200] * 2000], ids=str)
def test_answers_of_any_size_are_written_whole(sizes, ends):
    server_end, worker_end = ends
    bodies = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    message = wire.Result(1, [wire.Answer(size) for size in sizes], 0.0)

    def write():
        channel = ServerChannel(worker_end)
        channel.send(message, bodies)
        channel.send(wire.Pong())
        worker_end.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    reader = FrameReader(to_server_decoder)
    received = []
    while data := server_end.recv(1 << 16):
        received += [(m, bytes(tail)) for m, tail in reader.feed(data)]
    writer.join()

    assert received == [(message, b"".join(bodies)), (wire.Pong(), b"")]


class Narrow:
    """A connection that takes a few bytes per call, as a socket may."""

    def __init__(self):
        self.received = bytearray()

    def sendmsg(self, pieces):
        taken = b"".join(pieces)[:7777]
        self.received += taken
        return len(taken)


def test_partial_writes_are_continued():
    bodies = [b"a" * 50_000, b"", b"b" * 3, b"c" * 40_000]
    connection = Narrow()

    ServerChannel(connection).send(wire.Result(1, [wire.Answer(len(b)) for b in bodies], 0.0), bodies)

    ((_, tail),) = FrameReader(to_server_decoder).feed(bytes(connection.received))
    assert tail == b"".join(bodies)


def test_arena_of_the_server_is_used(ends):
    server_end, worker_end = ends
    arena = Arena.create()
    assert arena is not None
    body, content = os.urandom(LARGE), os.urandom(LARGE)
    Arena.send(server_end, b"".join(encode(wire.Ping())), arena)
    server_end.sendall(b"".join(encode(wire.Predict(5, [wire.Row("a", LARGE)]), [body], arena.outgoing)))
    server_end.shutdown(socket.SHUT_WR)
    channel, batch = ServerChannel(worker_end), wire.Predict(5, [wire.Row("a", LARGE)])
    result = wire.Result(5, [wire.Answer(LARGE)], 0.0)

    received = [(message, bytes(tail)) for message, tail in channel.messages()]
    assert received == [(wire.Ping(), b""), (batch, body)]
    channel.send(result, [content])
    answer = server_end.recv(1 << 20)
    reader = FrameReader(to_server_decoder)
    reader.arena = arena.incoming
    assert [(message, bytes(tail)) for message, tail in reader.feed(answer)] == [(result, content)]
    arena.trim()
    used = os.fstat(arena.descriptor).st_blocks
    channel.send(wire.Pong())
    assert (used * 512 >= LARGE, os.fstat(arena.descriptor).st_blocks) == (True, 0)
    arena.close()


def test_headers_of_a_row_outlast_what_is_received_after_it(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    headers = msgspec.Raw(msgspec.msgpack.encode([(b"name", b"value")]))
    server_end.sendall(frames(wire.Predict(1, [wire.Row("a", 1, headers=headers)])))
    messages = [message for message, _ in channel.take(wait=True)]
    for _ in range(3):
        server_end.sendall(frames(wire.Ping()) * 20)
        assert len(list(channel.take(wait=True))) == 20

    (message,) = messages
    assert isinstance(message, wire.Predict)
    assert bytes(message.rows[0].headers) == bytes(headers)


def test_a_pong_gives_memory_back(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    body = bytes(1_000_000)
    frame = b"".join(encode(wire.Predict(1, [wire.Row("a", len(body))]), [body]))
    sending = threading.Thread(target=server_end.sendall, args=(frame,))
    sending.start()
    while not list(channel.take(wait=True)):
        pass
    sending.join()
    saved = len(channel._reader._spare)
    channel.send(wire.Pong())

    assert (saved, len(channel._reader._spare)) == (len(frame), 0)


def frames(*messages):
    """Their bytes; a batch has one byte per row."""
    pieces = []
    for message in messages:
        rows = [b"x"] * len(message.rows) if isinstance(message, wire.Predict) else []
        pieces += encode(message, rows)
    return b"".join(pieces)


def test_messages_can_be_seen_before_they_are_taken(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    sent = [wire.Predict(number, [wire.Row("a", 1)]) for number in range(4)]
    server_end.sendall(frames(sent[0], sent[1]))
    messages = channel.messages()
    assert next(messages)[0] == sent[0]

    assert channel.look() == [sent[1]]
    server_end.sendall(frames(wire.Cancelled(1, [0]), sent[2])[:-3])
    assert channel.look() == [sent[1], wire.Cancelled(1, [0])]
    server_end.sendall(frames(sent[2])[-3:] + frames(sent[3]))
    assert channel.look() == [sent[1], wire.Cancelled(1, [0]), *sent[2:]]
    server_end.close()
    assert len(channel.look()) == 4
    assert not channel.is_open

    rest = [(message, bytes(tail)) for message, tail in messages]
    assert rest == [(sent[1], b"x"), (wire.Cancelled(1, [0]), b""), (sent[2], b"x"), (sent[3], b"x")]


def test_take_waits_only_if_it_is_to(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    server_end.sendall(frames(wire.Ping(), wire.Predict(1, []), wire.Predict(2, [])))
    next(channel.messages())

    assert [m for m, _ in channel.take(wait=True)] == [wire.Predict(1, []), wire.Predict(2, [])]
    assert list(channel.take(wait=False)) == []
    threading.Thread(target=server_end.sendall, args=[frames(wire.Stop())]).start()
    assert [m for m, _ in channel.take(wait=True)] == [wire.Stop()]
    server_end.sendall(frames(wire.Ping()))
    assert channel.look() == [wire.Ping()]
    assert [m for m, _ in channel.take(wait=True)] == [wire.Ping()]
    server_end.close()
    assert list(channel.take(wait=True)) == []
    assert not channel.is_open


def test_one_proceed_ends_the_wait(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)
    server_end.sendall(frames(wire.Predict(1, [])))
    messages = channel.messages()
    next(messages)
    server_end.sendall(frames(wire.Cancelled(1, [0]), wire.Proceed(1), wire.Ping(), wire.Proceed(1)))
    channel.await_proceed()
    assert channel.look() == [wire.Cancelled(1, [0]), wire.Ping(), wire.Proceed(1)]
    channel.await_proceed()
    threading.Thread(target=server_end.close).start()
    channel.await_proceed()

    assert [message for message, _ in messages] == [wire.Cancelled(1, [0]), wire.Ping()]


def test_threads_may_send_at_the_same_time(ends):
    server_end, worker_end = ends
    channel = ServerChannel(worker_end)

    def send(number):
        for _ in range(9):
            channel.send(wire.Parts([number], [0], [wire.Answer(50_000)]), [bytes([number]) * 50_000])

    threads = [threading.Thread(target=send, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    reader = FrameReader(to_server_decoder)
    seen = []
    while len(seen) < 36:
        for message, tail in reader.feed(server_end.recv(1 << 16)):
            assert isinstance(message, wire.Parts)
            seen.append((message.sequences[0], set(tail)))
    for thread in threads:
        thread.join()

    assert sorted(sequence for sequence, _ in seen) == sorted([0, 1, 2, 3] * 9)
    assert all(content == {sequence} for sequence, content in seen)
