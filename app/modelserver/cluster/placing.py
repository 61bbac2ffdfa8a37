"""Where workers run: what one needs, and who finds a machine for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping


class NoPlace(OSError):
    """No machine could be had for a worker; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources of one worker, as Ray counts them; ``memory`` in bytes.

    ``label_selector``: the labels that its node must have. ``placement``: ``spread`` puts workers on
    different nodes as far as possible, ``pack`` on as few as possible.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement: str = "spread"


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
