"""Who finds a machine for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from modelserver.engine.demand import Demand


class NoPlace(OSError):
    """No machine could be had for a worker; the message says why, in one line."""


class Guest(Protocol):
    """A model that makes room for others, and for which others make room."""

    def reserve(self) -> int:
        """Returns the bytes that the next worker reserves on its machine."""

    def make_room(self, lacks: Mapping[str, Mapping[str, float]]) -> None:
        """No machine has room for a worker; ``lacks`` as in :class:`Placement`."""

    def unplaced(self) -> None:
        """The start of a worker has ended without a machine."""


class Placement(Protocol):
    """The place of one worker that was asked for.

    ``ended`` is set when it is gone, or that of one of the worker's processes, with the reason in words.
    ``lacks``: while no machine has room, the amounts that those which could have it lack, by their names and
    Ray's names of resources.
    """

    ended: asyncio.Future[str]
    lacks: Mapping[str, Mapping[str, float]]

    def withdraw(self) -> None:
        """Gives the place back, which ends what runs there. Idempotent."""


class Placer(Protocol):
    """Finds machines, and runs agents on them."""

    async def place(self, invitations: Sequence[str], demand: Demand, label: str) -> Placement:
        """Asks for a place for the agents of worker ``label``, each of which gets an invitation there.

        There is one for each of the worker's processes, which needs ``demand``; they get their places
        together or not at all. Returns before there are any: the agents will connect. Raises NoPlace if there
        cannot be one.
        """

    def situation(self) -> str:
        """Describes the free and the total resources in words; empty if unknown."""

    async def close(self) -> None:
        """Gives back all places."""
