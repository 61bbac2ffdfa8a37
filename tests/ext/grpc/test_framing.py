import asyncio
import gzip
import itertools
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.grpc.framing import _AT_ONCE, CallRefused, Inbox, message_framed, unpacked
from modelserver.ext.grpc.statuses import StatusCode

LARGEST = 1 << 20


@given(
    st.lists(st.binary(max_size=40) | st.integers(5000, 9000).map(bytes), max_size=6),
    st.lists(st.tuples(st.integers(1, 8) | st.integers(1000, 20_000), st.integers(0, 3)), min_size=1),
)
def test_messages_come_in_any_pieces(messages, cuts):
    body, inbox, result = b"".join(map(message_framed, messages)), Inbox(LARGEST), []
    for size, most in itertools.cycle(cuts):
        if not body:
            break
        inbox.add(body[:size])
        body = body[size:]
        result += [inbox.next() for _ in range(most) if inbox.is_complete]
    while inbox.is_complete:
        result.append(inbox.next())

    assert result == [(0, message) for message in messages]
    assert inbox.held == 0
    assert not inbox._pieces


def test_pieces_and_messages_take_little_memory():
    """Pieces of a byte are joined, as each object would take many."""
    inbox = Inbox(LARGEST)
    for _ in range(50_000):
        inbox.add(b"\0")

    assert len(inbox._pieces) <= 20

    inbox, count = Inbox(LARGEST), 50_000
    inbox.add(message_framed(b"") * count)
    [piece] = inbox._pieces
    assert inbox.is_complete
    inbox.next()

    assert inbox._pieces[0] is piece
    assert inbox.held == 5 * (count - 1)


def deflated(data):
    return zlib.compress(data)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", deflated)])
@pytest.mark.parametrize("size", [0, 10, _AT_ONCE - 1, _AT_ONCE, _AT_ONCE + 1, LARGEST])
async def test_compressed_message_is_unpacked(encoding, pack, size):
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert await unpacked(pack(message), encoding, LARGEST) == message


@pytest.mark.parametrize("largest", [0, 100, _AT_ONCE - 1, _AT_ONCE, LARGEST])
async def test_bomb_is_refused_at_the_limit(largest):
    with pytest.raises(CallRefused) as refused:
        await unpacked(gzip.compress(bytes(max(largest + 1, 10 * largest))), "gzip", largest)
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("message", "encoding", "code"),
    [
        (b"not packed", "gzip", StatusCode.INTERNAL),
        (gzip.compress(b"cut off" * 100, mtime=0)[:-9], "gzip", StatusCode.INTERNAL),
        (gzip.compress(bytes(10 * _AT_ONCE), mtime=0)[:-9] + b"wrong sum", "gzip", StatusCode.INTERNAL),
        (b"", "gzip", StatusCode.INTERNAL),
        (b"x", "identity", StatusCode.INTERNAL),
        (b"x", "snappy", StatusCode.UNIMPLEMENTED),
    ],
)
async def test_message_that_cannot_be_unpacked_is_refused(message, encoding, code):
    with pytest.raises(CallRefused) as refused:
        await unpacked(message, encoding, LARGEST)
    assert refused.value.code is code


async def test_large_messages_are_unpacked_aside(monkeypatch):
    threads = []

    async def off_loop(act, *value):
        def noted():
            threads.append(threading.get_ident())
            return act(*value)

        return await asyncio.get_running_loop().run_in_executor(None, noted)

    monkeypatch.setattr("asyncio.to_thread", off_loop)
    await unpacked(gzip.compress(bytes(_AT_ONCE - 1)), "gzip", LARGEST)
    assert threads == []
    await unpacked(gzip.compress(bytes(10 * _AT_ONCE)), "gzip", LARGEST)
    assert threads
    assert threading.get_ident() not in threads
