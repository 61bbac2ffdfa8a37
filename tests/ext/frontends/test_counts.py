"""The numbers that front ends share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from modelserver.ext.frontends.counts import ABSENT, MAX_SEATS, ConnectionCounts, make_counts

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def counts() -> Iterator[tuple[int, ConnectionCounts]]:
    descriptor, made = make_counts(3)
    yield descriptor, made
    made.close()
    os.close(descriptor)


def test_seats_are_empty_at_first(counts: tuple[int, ConnectionCounts]) -> None:
    """Nobody is waited for before somebody sits there."""
    assert counts[1].fewest() == ABSENT


def test_smallest_number_counts(counts: tuple[int, ConnectionCounts]) -> None:
    """The smallest number of those who are there counts; who leaves does not."""
    counts[1].put(0, 5)
    counts[1].put(2, 3)
    assert counts[1].fewest() == 3

    counts[1].leave(2)
    assert counts[1].fewest() == 5


def test_others_see_it(counts: tuple[int, ConnectionCounts]) -> None:
    """A process that got the descriptor sees what the others put there."""
    other = ConnectionCounts(counts[0], 3)
    other.put(1, 7)

    assert counts[1].fewest() == 7
    other.close()


def test_it_is_large_enough() -> None:
    """A page has room for the largest number of front ends."""
    assert MAX_SEATS >= 64
