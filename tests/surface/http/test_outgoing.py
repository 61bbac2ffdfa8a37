"""What is held for clients that do not take their answers, and who is cut when it is too much."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from modelserver.models.settings.settings import Settings
from modelserver.surface.http import outgoing
from modelserver.surface.http.intake import MUCH
from modelserver.surface.http.outgoing import Outgoing, OutgoingFull

if TYPE_CHECKING:
    import pytest


class Client:
    """Has waited for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_cut = False

    def waited(self) -> float:
        return self.seconds

    def cut(self) -> None:
        assert not self.is_cut
        self.is_cut = True


def test_shares() -> None:
    """Server, front ends and their links have equal shares of the setting, but room for one prediction."""
    settings = Settings(max_outgoing_bytes=30_000_000, max_response_size=6_000_000)

    assert Outgoing.of(settings).limit == 30_000_000
    assert Outgoing.of(settings, front_ends=2).limit == 6_000_000
    assert Outgoing.of(Settings(max_outgoing_bytes=50_000_000), front_ends=2).limit == 10_000_000


def test_sizes_are_those_of_the_moment() -> None:
    """What a holder has replaces what it had, and is gone with it."""
    sut, client = Outgoing(1000), Client(0)
    sut.count(client, 300)
    sut.count(client, 500)
    sut.add(100)
    assert sut.held == 600
    sut.count(client, 0)
    sut.count(client, 0)

    assert sut.held == 100


def test_who_has_waited_longest_is_cut_first(caplog: pytest.LogCaptureFixture) -> None:
    """Above the limit, until an eighth of it is free; the log tells how many each time."""
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


def test_one_answer_always_has_room() -> None:
    """A single holder is not cut, however much it has."""
    sut, client = Outgoing(1000), Client(9)
    sut.count(client, 5000)

    assert not client.is_cut
    assert not sut.has_room()


def test_room_for_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none while an eighth of the limit is not free and nobody has waited for a second; it is looked
    for twice a second.
    """
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


def test_who_has_taken_all_meanwhile_is_not_cut() -> None:
    """A holder may find that its client has taken all when it is asked how long it has waited."""

    class Quick(Client):
        def waited(self) -> float:
            sut.count(self, 0)
            return 0.0

    sut, quick, slow = Outgoing(1000), Quick(0), Client(9)
    sut.count(slow, 300)
    sut.count(quick, 600)
    sut.count(Client(0), 200)

    assert not quick.is_cut
    assert not slow.is_cut
    assert sut.held == 500


def test_memory_is_given_back() -> None:
    """After much was held, and not for little."""
    calls: list[int] = []
    sut, client = Outgoing(1 << 30), Client(0)
    sut.give_back = lambda: calls.append(sut.held)
    for size in (MUCH, MUCH + 1, 0, 5, 0):
        sut.count(client, size)

    assert calls == [0]


def test_refusals_name_the_setting() -> None:
    """And say when to come back."""
    error = OutgoingFull(7)

    assert error.status == 503
    assert "max_outgoing_bytes=7" in error.message
    assert error.headers == ((b"retry-after", b"1"),)
