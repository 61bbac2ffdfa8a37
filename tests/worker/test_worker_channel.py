from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from modelserver.wire.frames import FrameReader, ProtocolError, encode, to_server_decoder
from modelserver.wire.messages import Answer, Ping, Pong, Predict, Result, Row, Stop
from modelserver.worker.channel import ServerChannel

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_end_when_the_server_closes(ends: tuple[socket.socket, socket.socket]) -> None:
    """A worker reads all that was sent and then sees the end."""
    ours, theirs = ends
    ours.sendall(b"".join(encode(Ping())) + b"".join(encode(Predict(5, [Row("a", 2)]), [b"xy"])))
    ours.sendall(b"".join(encode(Stop())))
    ours.close()

    received = [(message, bytes(tail)) for message, tail in ServerChannel(theirs).messages()]

    assert received == [(Ping(), b""), (Predict(5, [Row("a", 2)]), b"xy"), (Stop(), b"")]


def test_garbage_from_the_server_is_a_protocol_error(ends: tuple[socket.socket, socket.socket]) -> None:
    """A worker does not guess at what is no frame."""
    ours, theirs = ends
    ours.sendall(b"\x00" * 8)

    with pytest.raises(ProtocolError):
        next(ServerChannel(theirs).messages())


@pytest.mark.parametrize("sizes", [[], [10, 0, 20], [3_000_000, 0, 1], [200] * 2000], ids=str)
def test_answers_of_any_size_are_written_whole(
    sizes: list[int], ends: tuple[socket.socket, socket.socket]
) -> None:
    """More pieces than one call takes, and more bytes than the socket holds, arrive complete and in order."""
    ours, theirs = ends
    bodies = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    message = Result(1, [Answer(size) for size in sizes], 0.0)

    def write() -> None:
        channel = ServerChannel(theirs)
        channel.send(message, bodies)
        channel.send(Pong())
        theirs.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    reader = FrameReader(to_server_decoder)
    received = []
    while data := ours.recv(1 << 16):
        received += [(m, bytes(tail)) for m, tail in reader.feed(data)]
    writer.join()

    assert received == [(message, b"".join(bodies)), (Pong(), b"")]


class Narrow:
    """A connection that takes a few bytes per call, as a socket may."""

    def __init__(self) -> None:
        self.received = bytearray()

    def sendmsg(self, pieces: list[memoryview]) -> int:
        taken = b"".join(pieces)[:7777]
        self.received += taken
        return len(taken)


def test_partial_writes_are_continued() -> None:
    """Where a write takes a part only, also of one piece, the rest follows, nothing twice."""
    bodies = [b"a" * 50_000, b"", b"b" * 3, b"c" * 40_000]
    connection = Narrow()

    ServerChannel(connection).send(Result(1, [Answer(len(b)) for b in bodies], 0.0), bodies)  # type: ignore[arg-type]

    ((_, tail),) = FrameReader(to_server_decoder).feed(bytes(connection.received))
    assert tail == b"".join(bodies)


def answers_in(end: socket.socket) -> list[int]:
    """The sequences of the results that can be read now."""
    end.setblocking(False)
    try:
        data = end.recv(1 << 16)
    except BlockingIOError:
        return []
    finally:
        end.setblocking(True)
    messages = [message for message, _ in FrameReader(to_server_decoder).feed(data)]
    return [message.sequence for message in messages if isinstance(message, Result)]


def test_answer_does_not_wait_for_the_next_batch(ends: tuple[socket.socket, socket.socket]) -> None:
    """Of two batches that were read together, the first one's answer leaves before the second one runs."""
    ours, theirs = ends
    channel = ServerChannel(theirs)
    ours.sendall(b"".join(encode(Predict(1, []))) + b"".join(encode(Predict(2, []))))
    messages = channel.messages()

    for sequence in (1, 2):
        next(messages)
        channel.send(Result(sequence, [], 0.0))
        assert answers_in(ours) == [sequence]
