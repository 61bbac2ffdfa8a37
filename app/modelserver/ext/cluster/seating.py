"""Which rank is which: the processes of one worker, numbered by the machines that they were placed on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.pools.ranks import Position, member_spec
from modelserver.engine.telemetry.gpus import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.engine.pools.spec import Ranks, WorkerSpec
    from modelserver.ext.cluster.messages import Meeting, Present

_HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank: ``place`` is the number of its agent, ``local_rank`` its own among ``local_count`` there.

    It is on machine ``node`` of ``nodes``, where the ranks were given the GPUs ``devices``, as in
    CUDA_VISIBLE_DEVICES, and this one number ``device`` of them. All see all: libraries take the one of their
    LOCAL_RANK, and exchange data between those that they see.
    """

    place: int
    rank: int
    count: int
    local_rank: int
    local_count: int
    node: int
    nodes: int
    devices: str
    device: int


def seats(presents: Sequence[Present]) -> list[Seat]:
    """The ranks in their order; those of one machine, with the same name, follow each other."""
    by_node: dict[str, list[int]] = {}
    for place, present in enumerate(presents):
        by_node.setdefault(present.node, []).append(place)
    order: list[Seat] = []
    for node, members in enumerate(by_node.values()):
        # Members are sorted by their GPUs, of which the numbers below ten come first.
        members.sort(key=lambda place: (len(presents[place].devices), presents[place].devices))
        gpus = [presents[place].devices for place in members]
        devices = list(dict.fromkeys(name for each in gpus for name in each.split(",") if name))
        # If all have the same GPUs, each takes its own of these.
        same = len(set(gpus)) == 1
        for local_rank, place in enumerate(members):
            own = gpus[local_rank].split(",")[0]
            device = devices.index(own) if own and not same else local_rank % (len(devices) or len(members))
            order.append(
                Seat(
                    *(place, len(order), len(presents), local_rank, len(members)),
                    *(node, len(by_node), ",".join(devices), device),
                )
            )
    return order


def rank_spec(spec: WorkerSpec, ranks: Ranks, seat: Seat, meeting: Meeting, *, has_gpus: bool) -> WorkerSpec:
    """The spec for the process of a rank; ``meeting``: where all meet, on the first machine."""
    host = _HERE if seat.nodes == 1 else meeting.host
    position = Position(
        *(seat.rank, seat.count, seat.local_rank, seat.local_count, seat.node, seat.nodes),
        *(host, meeting.port),
    )
    member = member_spec(spec, ranks, position)
    if not has_gpus:
        return member
    load = msgspec.structs.replace(member.load, gpu_id=seat.device)
    visible = {VISIBLE: seat.devices} if seat.devices else {}
    return replace(member, load=load, extra_environment={**member.extra_environment, **visible})
