"""Starts workers on other machines: finds places, has agents start processes there, and connects them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from modelserver.engine.demand import Demand
from modelserver.engine.pools.ranks import RankGroup
from modelserver.ext.cluster.messages import Meet
from modelserver.ext.cluster.packing import Packer
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.seating import rank_spec, seats
from modelserver.ext.cluster.starting import ProcessStart

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from modelserver.engine.pools.spec import OnLost, OnMessage, Process, Ranks, WorkerSpec
    from modelserver.ext.cluster.hub import Hub
    from modelserver.ext.cluster.messages import Present
    from modelserver.ext.cluster.packing import Packed
    from modelserver.ext.cluster.placing import Placement, Placer

_log = logging.getLogger("modelserver.workers")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all workers on other machines share; times in seconds.

    ``placement_timeout``: how long a worker waits for a machine. ``lost_after``: the silence after which
    server and agent give each other up.
    """

    hub: Hub
    placer: Placer
    placement_timeout: float
    lost_after: float
    packer: Packer = field(default_factory=Packer)

    def launcher(self, demand: Demand, requirements: str, *, use_venv: bool) -> ClusterLauncher:
        """What starts the workers of one model version."""
        return ClusterLauncher(self, demand, requirements, use_venv)


@dataclass(frozen=True, slots=True)
class ClusterLauncher:
    """Starts the workers of one model version on other machines; ``demand`` is what each needs there.

    The processes of a worker with ranks share that.
    """

    cluster: Cluster
    demand: Demand = field(default_factory=Demand)
    requirements: str = ""
    use_venv: bool = False

    async def __call__(self, spec: WorkerSpec, label: str, on_message: OnMessage, on_lost: OnLost) -> Process:
        """As :class:`~modelserver.engine.pools.spec.Launcher`. Raises NoPlace if there is no machine."""
        # The machine's cores are shared by Ray, not by this server.
        spec = replace(spec, threads=max(1, int(self.demand.num_cpus)))
        launch = _Launch(self, spec, label, on_message, on_lost)
        try:
            return await launch.run()
        except BaseException:
            launch.abandon()
            raise
        finally:
            launch.close()


class _Launch:
    """The start of one worker."""

    def __init__(
        self, launcher: ClusterLauncher, spec: WorkerSpec, label: str, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        self._launcher = launcher
        self._cluster = cluster = launcher.cluster
        self._spec = spec
        self._label = label
        self._on_message = on_message
        self._on_lost = on_lost
        self._placement: Placement | None = None
        ranks = spec.ranks
        self._ranks: Ranks | None = ranks if ranks is not None and ranks.processes else None
        self._starts = [
            ProcessStart(cluster.hub, spec, label, cluster.lost_after)
            for _ in range(1 if self._ranks is None else self._ranks.processes)
        ]

    async def run(self) -> Process:
        """Returns once the worker is connected and has been told what to load. Raises NoPlace."""
        clock = asyncio.get_running_loop().time
        began = clock()
        packed = await self._cluster.packer.pack(Path(self._spec.load.model_dir))
        presents, placement = await self._placed()
        placed = clock()
        if self._ranks is None:
            process = await self._start_alone(packed, placement)
        else:
            process = await self._start_ranks(self._ranks, presents, packed, placement)
        # None before all are connected: the first that cannot load ends the others.
        for start in self._starts:
            start.load()
            worker = start.worker
            _log.info(
                "Worker %s has a place on node %s (%s) after %.1f s, and a process after %.1f s.",
                *(worker.label, worker.node.name, worker.node.host, placed - began, clock() - placed),
            )
        return process

    async def _placed(self) -> tuple[list[Present], Placement]:
        """Waits for the agents on some machines."""
        cluster, demand = self._cluster, self._launcher.demand
        if self._ranks is not None:
            demand = demand.share(self._ranks.processes)
        invitations = [start.invitation.text() for start in self._starts]
        placement = self._placement = await cluster.placer.place(invitations, demand, self._label)
        placement.ended.add_done_callback(self._place_ended)
        try:
            return await _all(start.arrived(cluster.placement_timeout) for start in self._starts), placement
        except NoPlace as error:
            situation = cluster.placer.situation()
            raise NoPlace(f"{error}. {situation}" if situation else str(error)) from None

    def _place_ended(self, ended: asyncio.Future[str]) -> None:
        """Before its agents are there, this ends the start; later their connections tell if they live."""
        if ended.cancelled():
            return
        workers = [start.worker for start in self._starts]
        waiting = [worker for worker in workers if not worker.present.done()]
        for worker in waiting:
            worker.lose(ended.result())
        if not waiting and all(worker.is_alive for worker in workers):
            _log.warning(
                "Worker %s: its place is gone (%s), but it answers: it serves on",
                *(self._label, ended.result()),
            )

    async def _start_alone(self, packed: Packed, placement: Placement) -> Process:
        (start,) = self._starts
        start.worker.placement = placement
        # The machine numbers its GPUs by itself, and shows a worker only its own.
        gpu_id = 0 if self._launcher.demand.num_gpus > 0 else None
        spec = replace(self._spec, load=msgspec.structs.replace(self._spec.load, gpu_id=gpu_id))
        await start.connect(spec, packed, self._packages, self._on_message, self._on_lost)
        return start.worker

    async def _start_ranks(
        self, ranks: Ranks, presents: list[Present], packed: Packed, placement: Placement
    ) -> Process:
        """Ranks are numbered by machine, and meet at the first."""
        order = seats(presents)
        self._starts = [self._starts[seat.place] for seat in order]
        first = self._starts[0].worker
        first.say(Meet(ranks.ports.first, ranks.ports.turn()))
        meeting = await first.meeting
        group = RankGroup(ranks, self._on_message, self._on_lost, placement.withdraw)
        connecting = []
        for rank, (start, seat) in enumerate(zip(self._starts, order, strict=True)):
            start.worker.rename(f"{self._label}-rank{rank}")
            group.add(start.worker)
            spec = rank_spec(self._spec, ranks, seat, meeting, has_gpus=self._launcher.demand.num_gpus > 0)
            heard, lost = partial(group.hear, rank), partial(group.lose, rank)
            connecting.append(start.connect(spec, packed, self._packages, heard, lost))
        await _all(connecting)
        return group

    @property
    def _packages(self) -> tuple[str, bool]:
        return self._launcher.requirements, self._launcher.use_venv

    def abandon(self) -> None:
        for start in self._starts:
            start.abandon()
        if self._placement is not None:
            self._placement.withdraw()

    def close(self) -> None:
        """Invitations that were not used are void."""
        for start in self._starts:
            start.close()


async def _all(works: Iterable[Coroutine[None, None, Outcome]]) -> list[Outcome]:
    """The results of all; the first failure ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
