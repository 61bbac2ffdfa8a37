"""The messages between the server and its Ray helper: one JSON object a line."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Place(Struct, frozen=True, tag="place"):
    """Create an actor with these options of Ray, and give it the invitation."""

    id: int
    name: str
    invitation: str
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"Place({self.id}, {self.name!r}, {self.options})"


class Watch(Struct, frozen=True, tag="watch"):
    """Report the end of an actor that another helper has created."""

    id: int
    name: str


class Withdraw(Struct, frozen=True, tag="withdraw"):
    """Kill an actor, also one that another helper has created."""

    name: str


class Joined(Struct, frozen=True, tag="joined"):
    """The helper is part of the cluster. ``modelserver`` is the version there."""

    ray: str
    modelserver: str
    nodes: int


class Refused(Struct, frozen=True, tag="refused"):
    """The cluster cannot be used; the helper ends. The reason is one line."""

    reason: str


class Placed(Struct, frozen=True, tag="placed"):
    """A machine has been found: the actor runs there, and has its invitation."""

    id: int


class Ended(Struct, frozen=True, tag="ended"):
    """The actor has ended, or cannot be created."""

    id: int
    how: str


class State(Struct, frozen=True, tag="state"):
    """Sent all the time. ``lost``: why Ray cannot be reached.

    While actors wait for a machine, ``situation`` is what is free, and ``impossible`` what no node has.
    """

    lost: str = ""
    situation: str = ""
    impossible: str = ""


ToHelper = Place | Watch | Withdraw
FromHelper = Joined | Refused | Placed | Ended | State

encode = msgspec.json.Encoder().encode
decode_to_helper = msgspec.json.Decoder(ToHelper).decode
decode_from_helper = msgspec.json.Decoder(FromHelper).decode
