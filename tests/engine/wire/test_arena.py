import contextlib
import fcntl
import mmap
import os
import random
import socket
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.wire.arena import (
    HALF,
    SIZE,
    Arena,
    CopiedIncoming,
    MappedIncoming,
    MappedOutgoing,
    OutgoingHalf,
    ProtocolError,
)

PAGE = 4096
SMALL = 16 * PAGE
KINDS = [(OutgoingHalf, MappedIncoming), (MappedOutgoing, CopiedIncoming)]
BOTH_WAYS = pytest.mark.parametrize("kinds", KINDS, ids=["to the worker", "to the server"])


class Half:
    """One direction of an arena, small enough to be filled; the other one lies before it."""

    def __init__(self, kinds, size=SMALL):
        self.file = os.memfd_create("test")
        os.ftruncate(self.file, 2 * size)
        self.out = kinds[0](self.file, size, size)
        self.incoming = kinds[1](self.file, size, size)

    @property
    def memory(self):
        """Bytes that the system gives to it."""
        return os.fstat(self.file).st_blocks * 512


@pytest.fixture
def half(kinds):
    made = Half(kinds)
    yield made
    os.close(made.file)


@pytest.fixture
def arena():
    made = Arena.create()
    yield made
    made.close()


@BOTH_WAYS
def test_bytes_arrive(half):
    pieces = [bytes([n % 251]) * (n % 7) for n in range(2000)]
    size = sum(map(len, pieces))
    place = half.out.put(pieces, size)

    assert place == 0
    assert half.incoming.take(place, size) == b"".join(pieces)


@BOTH_WAYS
def test_full_arena_says_so_at_once(half):
    places = [half.out.put([bytes([n]) * PAGE], PAGE) for n in range(9)]
    assert places == [*range(0, SMALL, 2 * PAGE), None]

    half.incoming.free(4 * PAGE)

    assert half.out.put([b"y" * 3 * PAGE], 3 * PAGE) is None
    assert half.out.put([b"x" * PAGE], PAGE) == 4 * PAGE
    assert half.out.put([b"x"], 1) is None
    assert [half.incoming.take(n * 2 * PAGE, 1)[0] for n in range(8)] == [0, 1, ord("x"), *range(3, 8)]


@BOTH_WAYS
def test_block_may_be_as_large_as_the_half(half):
    most = SMALL - 64

    assert half.out.put([bytes(most + 1)], most + 1) is None
    place = half.out.put([b"z" * most], most)
    assert place == 0
    assert bytes(half.incoming.take(place, most)) == b"z" * most


@pytest.mark.parametrize("kinds", KINDS, ids=["to the worker", "to the server"])
@given(
    actions=st.lists(
        st.one_of(
            st.integers(0, SMALL // 2),  # a block of so many bytes
            st.sampled_from(["first", "last", "middle", "trim"]),  # which one is freed, or a moment of rest
        ),
        max_size=40,
    ),
    seed=st.integers(0, 1000),
)
def test_blocks_in_use_are_never_touched(kinds, actions, seed):
    made, chance = Half(kinds), random.Random(seed)
    held = []
    try:
        for action in actions:
            if action == "trim":
                made.out.trim()
                made.incoming.trim()
            elif isinstance(action, int):
                body = chance.randbytes(action)
                place = made.out.put([body[: action // 3], body[action // 3 :]], action)
                if place is None:
                    assert held, "an empty arena has room for half of it"
                else:
                    held.append((place, body))
            elif held:
                index = {"first": 0, "last": -1, "middle": len(held) // 2}[str(action)]
                made.incoming.free(held.pop(index)[0])
            for place, body in held:
                assert bytes(made.incoming.take(place, len(body))) == body
    finally:
        os.close(made.file)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("place", "size"),
    [(1, 1), (64, 1), (-PAGE, 1), (SMALL, 1), (2**63, 1), (0, SMALL), (SMALL - PAGE, PAGE - 63), (0, 2**62)],
)
def test_places_are_checked(half, place, size):
    with pytest.raises(ProtocolError):
        half.incoming.take(place, size)


def test_copy_does_not_change():
    """What the server has taken is its own: a worker that writes there again changes nothing."""
    half = Half((MappedOutgoing, CopiedIncoming))
    taken = half.incoming.take(half.out.put([b"before"], 6) or 0, 6)
    os.pwrite(half.file, b"after!", SMALL + 64)

    assert bytes(taken) == b"before"
    os.close(half.file)


def test_memory_that_is_gone_is_an_error_for_the_server():
    """A file that was cut shorter is refused, where mapped memory would end the process (SIGBUS)."""
    half = Half((MappedOutgoing, CopiedIncoming))
    os.ftruncate(half.file, SMALL + 100)

    with pytest.raises(ProtocolError, match="only 36"):
        half.incoming.take(0, 1000)
    os.close(half.file)
    with pytest.raises(ProtocolError, match="cannot be read"):
        half.incoming.take(0, 1000)


@BOTH_WAYS
def test_memory_is_used_when_written_and_released_at_rest(half):
    assert half.memory == 0
    first, second = (half.out.put([b"x" * PAGE], PAGE) for _ in range(2))
    assert half.memory == 4 * PAGE

    half.incoming.free(first or 0)
    half.out.trim()
    assert half.memory == 4 * PAGE
    assert bytes(half.incoming.take(second or 0, PAGE)) == b"x" * PAGE

    half.incoming.free(second or 0)
    half.out.trim()
    half.incoming.trim()
    assert half.memory == 0
    assert bytes(half.incoming.take(half.out.put([b"again"], 5) or 0, 5)) == b"again"


@BOTH_WAYS
def test_low_places_come_first(half):
    for n in range(100):
        place = half.out.put([b"x" * n], n)
        assert place == 0
        half.incoming.free(place)

    assert half.memory == PAGE


@pytest.mark.parametrize(
    ("kinds", "call"), [(KINDS[0], "pwritev"), (KINDS[1], "posix_fallocate")], ids=["server", "worker"]
)
def test_block_is_refused_without_memory(half, call, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, call, Mock(side_effect=OSError(28, "No space left on device")))
        assert half.out.put([b"x"], 1) is None

    assert half.out.put([b"x"], 1) == 0


def test_half_a_block_is_none(monkeypatch):
    half = Half((OutgoingHalf, MappedIncoming))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda *_: 10)
        assert half.out.put([b"x" * 100], 100) is None
    os.close(half.file)


def test_new_arena_takes_no_memory(arena):
    assert os.fstat(arena.descriptor).st_size == SIZE
    assert os.fstat(arena.descriptor).st_blocks == 0


@pytest.mark.parametrize("size", [0, 1, HALF, 4 * HALF])
def test_size_is_sealed(arena, size):
    """A worker can neither shorten the memory under the server nor make it larger, nor take the seals off."""
    copy = os.dup(arena.descriptor)
    with pytest.raises(PermissionError):
        os.ftruncate(copy, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(copy, b"x", SIZE)
    os.close(copy)


def test_holes_in_the_memory_are_zeros(arena):
    other = Arena.adopt(os.dup(arena.descriptor))
    sent = other.outgoing.put([b"answer"], 6)
    got = arena.outgoing.put([b"question"], 8)
    assert (sent, got) == (0, 0)
    with mmap.mmap(other.descriptor, SIZE) as everything:
        everything.madvise(mmap.MADV_REMOVE)

    assert bytes(arena.incoming.take(0, 6)) == bytes(6)
    assert arena.outgoing.put([b"next"], 4) == 0
    assert bytes(other.incoming.take(0, 4)) == b"next"
    other.close()


@pytest.mark.parametrize("with_arena", [True, False])
def test_arena_travels_with_the_first_bytes(arena, with_arena):
    ours, other = socket.socketpair()
    with ours, other:
        Arena.send(ours, b"hello", arena if with_arena else None)
        data, adopted = Arena.receive(other, 100)

    assert data == b"hello"
    assert (adopted is not None) == with_arena
    if adopted is not None:
        assert not os.get_inheritable(adopted.descriptor)
        assert os.path.sameopenfile(adopted.descriptor, arena.descriptor)
        adopted.close()


def test_first_bytes_are_sent_whole_or_not_at_all(arena):
    ours, other = socket.socketpair()
    ours.setblocking(False)
    with ours, other, pytest.raises(OSError, match="does not fit"):
        Arena.send(ours, bytes(1 << 24), arena)


def test_end_of_the_connection_brings_no_arena():
    ours, other = socket.socketpair()
    ours.close()
    with other:
        assert Arena.receive(other, 100) == (b"", None)


def shared_files():
    """This process's open files of memory, as number and target."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:" in (target := str(path.readlink())):
                yield path.name, target


def test_arena_is_none_where_it_cannot_be_made(monkeypatch):
    before = set(shared_files())
    for owner, name in ((os, "memfd_create"), (os, "ftruncate"), (fcntl, "fcntl")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, Mock(side_effect=OSError))
            assert Arena.create() is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert Arena.create() is None

    # Arenas of other tests may be closed meanwhile.
    assert set(shared_files()) - before == set()


def test_a_batch_is_the_workers_once_it_has_started(arena):
    turns = arena.turns()
    assert turns.begin(4) is True

    assert arena.recall(7) == 5
    assert turns.begin(4) is True


def test_a_batch_that_was_taken_back_is_the_servers(arena):
    turns = arena.turns()
    assert arena.recall(7) == 0

    assert [turns.begin(sequence) for sequence in (5, 6, 7)] == [False, False, True]


def test_a_batch_that_both_want_is_returned(arena):
    """At the moment when both have written, the server may have found it begun: the worker has to say so."""
    turns = arena.turns()
    started = turns._started

    class Meanwhile:
        """The server takes back between the worker's two looks."""

        def __getitem__(self, _):
            return started[0]

        def __setitem__(self, _, number):
            started[0] = number
            assert arena.recall(7) == 6

    turns._started = Meanwhile()

    assert turns.begin(5) is None


def test_never_do_both_take_a_batch(arena):
    turns, taken = arena.turns(), set[int]()
    began = {}
    start = threading.Barrier(2)

    def work():
        for sequence in range(200):
            start.wait()
            began[sequence] = turns.begin(sequence)

    worker = threading.Thread(target=work)
    worker.start()
    for sequence in range(200):
        start.wait()
        if arena.recall(sequence + 1) <= sequence:
            taken.add(sequence)
    worker.join()

    returned = {sequence for sequence, outcome in began.items() if outcome is None}
    ran = {sequence for sequence, outcome in began.items() if outcome}
    assert not ran & taken
    assert ran | taken | returned == set(range(200))
