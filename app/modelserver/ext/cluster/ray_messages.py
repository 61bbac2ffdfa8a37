"""The messages between the server and its Ray helper: one JSON object a line."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class PlaceActors(Struct, frozen=True, tag="place"):
    """Create an actor with these options of Ray for each invitation, and give it that.

    With a ``strategy`` they are a placement group, and have their places together.
    """

    id: int
    name: str
    invitations: list[str]
    options: dict[str, Any]
    strategy: str = ""

    @property
    def ranks(self) -> int:
        """How many actors are a placement group; 0 if there is a single one."""
        return len(self.invitations) if self.strategy else 0

    def __repr__(self) -> str:
        return f"PlaceActors({self.id}, {self.name!r}, {self.options})"


class WatchActors(Struct, frozen=True, tag="watch"):
    """Report the ends of actors that another helper has created; ``ranks`` as in :class:`PlaceActors`."""

    id: int
    name: str
    ranks: int = 0


class WithdrawActors(Struct, frozen=True, tag="withdraw"):
    """Kill actors, also those that another helper has created; ``ranks`` as in :class:`PlaceActors`."""

    name: str
    ranks: int = 0


class ClusterJoined(Struct, frozen=True, tag="joined"):
    """The helper is part of the cluster. ``modelserver`` is the version there."""

    ray: str
    modelserver: str
    nodes: int


class ClusterRefused(Struct, frozen=True, tag="refused"):
    """The cluster cannot be used; the helper ends. The reason is one line."""

    reason: str


class ActorsPlaced(Struct, frozen=True, tag="placed"):
    """Machines have been found: all actors run there, and have their invitations."""

    id: int


class ActorEnded(Struct, frozen=True, tag="ended"):
    """An actor has ended, or cannot be created; ``left`` others of its group run."""

    id: int
    how: str
    left: int = 0


class RayState(Struct, frozen=True, tag="state"):
    """Sent all the time. ``lost``: why Ray cannot be reached.

    While actors wait for a machine, ``situation`` is what is free, and ``impossible`` what no node has.
    ``lacks``: the amounts that nodes lack for the place with that id, by the beginning of their ids.
    """

    lost: str = ""
    situation: str = ""
    impossible: str = ""
    lacks: dict[int, dict[str, dict[str, float]]] = {}


def actor_names(name: str, ranks: int) -> list[str]:
    """The names of the actors of a place."""
    return [f"{name}:{rank}" for rank in range(ranks)] if ranks else [name]


ToHelper = PlaceActors | WatchActors | WithdrawActors
FromHelper = ClusterJoined | ClusterRefused | ActorsPlaced | ActorEnded | RayState

encode = msgspec.json.Encoder().encode
decode_to_helper = msgspec.json.Decoder(ToHelper).decode
decode_from_helper = msgspec.json.Decoder(FromHelper).decode
