import asyncio
import os
import socket

import pytest
from tests.waiting import until

from modelserver.ext.frontends.counts import ConnectionCounts, make_counts
from modelserver.ext.frontends.process import Acceptor


class Taken(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport


class House:
    """A listening socket with acceptors; keeps the protocols that each of them made."""

    def __init__(self, acceptors):
        self.descriptor, self.counts = make_counts(acceptors)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[list[Taken]] = [[] for _ in range(acceptors)]
        self.clients: list[socket.socket] = []
        self.acceptors = [self._acceptor(seat) for seat in range(acceptors)]

    def _acceptor(self, seat):
        shared = socket.socket(fileno=os.dup(self.listener.fileno()))
        shared.setblocking(False)

        def make():
            self.taken[seat].append(Taken())
            return self.taken[seat][-1]

        return Acceptor(shared, self.counts, seat, make)

    async def take(self, count):
        """How many each acceptor has when so many more clients were accepted."""
        before = sum(map(len, self.taken))
        self.clients += [socket.create_connection(self.listener.getsockname()) for _ in range(count)]
        await until(lambda: sum(map(len, self.taken)) == before + count)
        return [len(taken) for taken in self.taken]

    def close(self):
        for acceptor in self.acceptors:
            acceptor.close()
        for connection in [*self.taken[0], *self.taken[1]]:
            connection.transport.close()
        for client in self.clients:
            client.close()
        self.listener.close()
        self.counts.close()
        os.close(self.descriptor)


@pytest.fixture
async def house():
    made = House(2)
    yield made
    made.close()
    await asyncio.sleep(0.01)


async def test_connections_are_spread_evenly_until_one_closes(house):
    for acceptor in house.acceptors:
        acceptor.open()
    assert await house.take(20) == [10, 10]
    house.acceptors[0].close()
    assert await house.take(4) == [10, 14]


async def test_who_is_slow_goes_first_still(house, monkeypatch):
    """Who takes connections goes first, though a turn of its loop takes longer than the wait."""
    monkeypatch.setattr("modelserver.ext.frontends.process.COURTESY", 0.0)
    house.acceptors[0].open()
    await house.take(6)
    house.acceptors[1].open()

    assert await house.take(6) == [6, 6]


async def test_nobody_waits_for_ever_for_the_others(house):
    house.acceptors[0].open()
    house.counts.put(1, 0)
    assert await house.take(5) == [5, 0]


async def test_the_board_follows(house):
    """Connections that have ended are no longer counted."""
    acceptor = house.acceptors[0]
    acceptor.open()
    await house.take(2)
    assert acceptor.connections == 2

    acceptor.left()
    assert acceptor.connections == 1
    assert house.counts.fewest() == 1


async def test_connection_is_accepted_later_when_descriptors_run_out(house, monkeypatch):
    """A connection that cannot be accepted is tried again a little later (F38)."""
    monkeypatch.setattr("modelserver.ext.frontends.process._PAUSE", 0.01)
    acceptor, tries = house.acceptors[0], []

    class Poor:
        def __init__(self, listener):
            self._listener = listener

        def __getattr__(self, name):
            return getattr(self._listener, name)

        def accept(self):
            tries.append(1)
            if len(tries) < 3:
                raise OSError(24, "Too many open files")
            return self._listener.accept()

    monkeypatch.setattr(acceptor, "_listener", Poor(acceptor._listener))
    acceptor.open()
    await house.take(1)

    assert len(tries) == 3
    assert ConnectionCounts(house.descriptor, 2).fewest() == 1
