"""How front ends share the connections of one listening socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from modelserver.ext.frontends.acceptor import Acceptor
from modelserver.ext.frontends.counts import ConnectionCounts, make_counts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Taken(asyncio.Protocol):
    """A connection that an acceptor took."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class House:
    """A listening socket with acceptors; keeps the protocols that each of them made."""

    def __init__(self, acceptors: int) -> None:
        self.descriptor, self.counts = make_counts(acceptors)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[list[Taken]] = [[] for _ in range(acceptors)]
        self.clients: list[socket.socket] = []
        self.acceptors = [self._acceptor(seat) for seat in range(acceptors)]

    def _acceptor(self, seat: int) -> Acceptor:
        shared = socket.socket(fileno=os.dup(self.listener.fileno()))
        shared.setblocking(False)

        def make() -> Taken:
            self.taken[seat].append(Taken())
            return self.taken[seat][-1]

        return Acceptor(shared, self.counts, seat, make)

    def connect(self, count: int) -> None:
        self.clients += [socket.create_connection(self.listener.getsockname()) for _ in range(count)]

    async def until_taken(self, count: int) -> None:
        while sum(map(len, self.taken)) < count:  # noqa: ASYNC110 - it is not told of each
            await asyncio.sleep(0.001)

    def close(self) -> None:
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
async def house() -> AsyncIterator[House]:
    made = House(2)
    yield made
    made.close()
    await asyncio.sleep(0.01)


async def test_connections_are_spread_evenly(house: House) -> None:
    """A burst of connections leaves all front ends with as many as the others."""
    for acceptor in house.acceptors:
        acceptor.open()
    house.connect(20)
    await asyncio.wait_for(house.until_taken(20), 10)

    assert [len(taken) for taken in house.taken] == [10, 10]


async def test_who_is_slow_goes_first_still(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes connections goes first, though a turn of its loop takes longer than the wait."""
    monkeypatch.setattr("modelserver.ext.frontends.acceptor.COURTESY", 0.0)
    house.acceptors[0].open()
    house.connect(6)
    await asyncio.wait_for(house.until_taken(6), 10)
    house.acceptors[1].open()
    house.connect(6)
    await asyncio.wait_for(house.until_taken(12), 10)

    assert [len(taken) for taken in house.taken] == [6, 6]


async def test_nobody_waits_for_ever_for_the_others(house: House) -> None:
    """Where the front end with the fewest connections does not take one, another does after a moment."""
    house.acceptors[0].open()
    house.counts.put(1, 0)
    house.connect(5)
    await asyncio.wait_for(house.until_taken(5), 10)

    assert len(house.taken[0]) == 5


async def test_the_board_follows(house: House) -> None:
    """Connections that have ended are no longer counted."""
    acceptor = house.acceptors[0]
    acceptor.open()
    house.connect(2)
    await asyncio.wait_for(house.until_taken(2), 10)
    assert acceptor.connections == 2

    acceptor.left()
    assert acceptor.connections == 1
    assert house.counts.fewest() == 1


async def test_a_closed_acceptor_takes_none(house: House) -> None:
    """What comes after that waits for the others, none is lost."""
    for acceptor in house.acceptors:
        acceptor.open()
    house.acceptors[0].close()
    house.connect(4)
    await asyncio.wait_for(house.until_taken(4), 10)

    assert [len(taken) for taken in house.taken] == [0, 4]


async def test_connection_is_accepted_later_when_descriptors_run_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be accepted is tried again a little later (F38)."""
    monkeypatch.setattr("modelserver.ext.frontends.acceptor._PAUSE", 0.01)
    acceptor, tries = house.acceptors[0], []

    class Poor:
        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def __getattr__(self, name: str) -> object:
            return getattr(self._listener, name)

        def accept(self) -> tuple[socket.socket, object]:
            tries.append(1)
            if len(tries) < 3:
                raise OSError(24, "Too many open files")
            return self._listener.accept()

    monkeypatch.setattr(acceptor, "_listener", Poor(acceptor._listener))
    acceptor.open()
    house.connect(1)
    await asyncio.wait_for(house.until_taken(1), 10)

    assert len(tries) == 3
    assert ConnectionCounts(house.descriptor, 2).fewest() == 1
