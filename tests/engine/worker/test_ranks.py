import socket

import pytest

from modelserver.engine.wire.frames import FrameReader, to_server_decoder
from modelserver.engine.wire.messages import Answer, Broken, Loaded, LoadFailed, Parts, Pong, Result
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.runtime import excused, keep_answers_back


def test_answers_of_other_ranks_are_held_back():
    """A batch with failures is reported as one failure, without its text."""
    server, end = socket.socketpair()
    with server, end:
        channel = ServerChannel(end)
        keep_answers_back(channel)
        channel.send(Loaded(seconds=1.0))
        channel.send(Parts([3], [0], [Answer(2)]), [b"xy"])
        channel.send(Result(3, [Answer(5)], 0.25, calls=4), [b"large"])
        channel.send(Result(4, [Answer(1), Answer(4, failed=True)], 0.25), [b"x", b"text"])
        channel.send(Pong())
        channel.send(LoadFailed("no"))
        channel.send(Broken("why"))
        sent = FrameReader(to_server_decoder).feed(server.recv(4096))

    assert [(message, bytes(tail)) for message, tail in sent] == [
        (Loaded(seconds=1.0), b""),
        (Result(3, [], 0.25), b""),
        (Result(4, [Answer(0, failed=True)], 0.25), b""),
        (Pong(), b""),
        (LoadFailed("no"), b""),
        (Broken("why"), b""),
    ]


@pytest.mark.parametrize("returned", [None, [], "text", [1], [1, 2, 3], iter([1, 2])])
def test_followers_may_answer_or_not(returned):
    assert excused(lambda _data, _context: returned)([{}, {}], None) == [b"", b""]

    answers = [1, 2]

    assert excused(lambda _data, _context: answers)([{}, {}], None) is answers
