import logging

import pytest

from modelserver.models.settings.settings import Settings
from modelserver.surface.http import outgoing
from modelserver.surface.http.intake import MUCH
from modelserver.surface.http.outgoing import Outgoing


class Client:
    """A client that has waited for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_cut = False

    def waited(self) -> float:
        return self.seconds

    def cut(self) -> None:
        assert not self.is_cut
        self.is_cut = True


@pytest.mark.parametrize(
    ("most", "front_ends", "limit"),
    [(30_000_000, 1, 30_000_000), (30_000_000, 2, 6_000_000), (50_000_000, 2, 10_000_000)],
)
def test_limit_is_shared(most, front_ends, limit):
    settings = Settings(max_outgoing_bytes=most, max_response_size=6_000_000)

    assert Outgoing.of(settings, front_ends=front_ends).limit == limit


def test_size_of_a_holder_is_the_last_one():
    """A single holder is not cut, however much it has."""
    sut, client = Outgoing(1000), Client(0)
    sut.count(client, 300)
    sut.count(client, 500)
    sut.add(100)
    assert sut.held == 600
    sut.count(client, 0)
    sut.count(client, 0)
    assert sut.held == 100

    sut.count(client, 5000)
    assert not client.is_cut
    assert not sut.has_room()


def test_holder_that_has_waited_longest_is_cut_first(caplog):
    sut, clients = Outgoing(1000), [Client(3), Client(9), Client(1), Client(6)]
    for client in clients:
        sut.count(client, 250)
    assert not any(client.is_cut for client in clients)
    with caplog.at_level(logging.WARNING):
        sut.count(Client(0), 120)

    assert [client.is_cut for client in clients] == [False, True, False, False]
    assert sut.held == 870
    sut.count(Client(0), 140)
    assert [client.is_cut for client in clients] == [False, True, False, True]
    assert caplog.text.count("250 bytes of the 1 answers") == 2


def test_new_request_finds_room_twice_a_second(monkeypatch):
    """There is none while an eighth of the limit is not free and nobody has waited for a second."""
    now = 100.0
    monkeypatch.setattr(outgoing, "monotonic", lambda: now)
    sut, clients = Outgoing(1000), [Client(0.9), Client(0.5)]
    for client in clients:
        sut.count(client, 440)
    assert sut.is_tight
    assert not sut.has_room()
    clients[0].seconds = 1.0
    assert not sut.has_room()
    now += 0.5

    assert sut.has_room()
    assert [client.is_cut for client in clients] == [True, False]
    assert not sut.is_tight


def test_holder_that_has_taken_all_meanwhile_is_not_cut():
    class Quick(Client):
        def waited(self) -> float:
            sut.count(self, 0)
            return 0.0

    sut, quick, slow = Outgoing(1000), Quick(0), Client(9)
    for client, size in ((slow, 300), (quick, 600), (Client(0), 200)):
        sut.count(client, size)

    assert (quick.is_cut, slow.is_cut, sut.held) == (False, False, 500)


def test_memory_is_released_after_much_was_held():
    calls: list[int] = []
    sut, client = Outgoing(1 << 30), Client(0)
    sut.give_back = lambda: calls.append(sut.held)
    for size in (MUCH, MUCH + 1, 0, 5, 0):
        sut.count(client, size)

    assert calls == [0]
