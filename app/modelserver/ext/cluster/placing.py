"""Who finds a machine for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from modelserver.engine.demand import Demand


class NoPlace(OSError):
    """No machine could be had for a worker; the message says why, in one line."""


class Placement(Protocol):
    """The place of one worker that was asked for.

    ``ended`` is set when it is gone, or that of one of the worker's processes, with the reason in words.
    """

    ended: asyncio.Future[str]

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
