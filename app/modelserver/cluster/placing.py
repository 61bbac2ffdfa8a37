"""Who finds a machine for a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from modelserver.demand import Demand


class Placement(Protocol):
    """A place that was asked for. ``ended`` is set when it is gone, with the reason in words."""

    ended: asyncio.Future[str]

    def withdraw(self) -> None:
        """Gives the place back, which ends what runs there. Idempotent."""


class Placer(Protocol):
    """Finds machines, and runs agents on them."""

    async def place(self, invitation: str, demand: Demand, label: str) -> Placement:
        """Asks for a place for the agent of worker ``label``, which gets the invitation there.

        Returns before there is one: the agent will connect. Raises NoPlace if there cannot be one.
        """

    def situation(self) -> str:
        """What is free and what there is, in words; empty if unknown."""

    async def close(self) -> None:
        """Gives back all places."""
