"""Starts workers on other machines: finds places, has agents start processes there, and connects them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from modelserver import __version__
from modelserver.engine.demand import Demand
from modelserver.engine.pools.spec import Receiver, WorkerSpec
from modelserver.ext.cluster.channel import RemoteChannel
from modelserver.ext.cluster.greeting import Invitation
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.messages import PYTHON, ArchiveTicket, Meet, Meeting, Needs, Present, Start
from modelserver.ext.cluster.packing import ArchiveSender, Packed, Packer
from modelserver.ext.cluster.placing import Guest, NoPlace, Placement, Placer
from modelserver.ext.cluster.remote import RemoteWorker, SharedPlace

# Which rank is which: the processes of one worker, numbered by the machines that they were placed on.

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
            numbers = place, len(order), len(presents), local_rank, len(members), node, len(by_node)
            order.append(Seat(*numbers, ",".join(devices), device))
    return order


def rank_spec(spec: WorkerSpec, seat: Seat, meeting: Meeting, *, has_gpus: bool) -> WorkerSpec:
    """The spec for the process of a rank; ``meeting``: where all meet, on the first machine."""
    host = _HERE if seat.nodes == 1 else meeting.host
    assert spec.ranks is not None  # noqa: S101 - it has a seat
    return spec.ranks.member_spec(
        spec,
        rank=seat.rank,
        local=(seat.local_rank, seat.local_count),
        machine=(seat.node, seat.nodes),
        meeting=(host, meeting.port),
        gpus=(seat.device, seat.devices) if has_gpus else (None, ""),
    )


_log = logging.getLogger("modelserver.workers")
Outcome = TypeVar("Outcome")
# Seconds for the process to connect once its agent has started it.
CONNECT_TIME = 30.0
# Seconds between reports that there is no room.
REPORTS = 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The state that all workers on other machines share; times are in seconds.

    ``placement_timeout``: how long a worker waits for a machine. ``lost_after``: the silence after which
    server and agent give each other up.
    """

    hub: Hub
    placer: Placer
    placement_timeout: float
    lost_after: float
    packer: Packer = field(default_factory=Packer)

    def launcher(self, demand: Demand, packages: Needs) -> ClusterLauncher:
        """The launcher of one model version's workers."""
        return ClusterLauncher(self, demand, packages)


@dataclass(frozen=True, slots=True)
class ClusterLauncher:
    """Starts the workers of one model version on other machines; ``demand`` is what each needs there.

    The processes of a worker with ranks share that. ``guest`` knows what memory it reserves, which ``demand``
    need not have, and gets the reports that there is no room.
    """

    cluster: Cluster
    demand: Demand = field(default_factory=Demand)
    packages: Needs = ("", False, "")
    guest: Guest | None = None

    def sharing(self, guest: Guest) -> ClusterLauncher:
        """Returns the same with a guest."""
        return replace(self, guest=guest)

    async def __call__(
        self, spec: WorkerSpec, label: str, receivers: Sequence[Receiver]
    ) -> list[RemoteWorker]:
        """Starts a worker (:class:`~modelserver.engine.pools.spec.Launcher`). Raises NoPlace."""
        # The machine's cores are shared by Ray, not by this server.
        spec = replace(spec, threads=max(1, int(self.demand.num_cpus)))
        launch = _Launch(self, spec, label, receivers)
        try:
            return await launch.run()
        except BaseException as error:
            launch.abandon()
            if self.guest is not None and isinstance(error, NoPlace):
                self.guest.unplaced()
            raise
        finally:
            launch.close()


class _Launch:
    """The start of one worker."""

    def __init__(
        self, launcher: ClusterLauncher, spec: WorkerSpec, label: str, receivers: Sequence[Receiver]
    ) -> None:
        self._launcher = launcher
        self._packages = launcher.packages
        self._cluster = cluster = launcher.cluster
        self._spec = spec
        self._label = label
        self._receivers = receivers
        self._placement: Placement | None = None
        ranks = spec.ranks
        self._ranks = ranks if ranks is not None and ranks.processes else None
        self._starts = [ProcessStart(cluster.hub, spec, label, cluster.lost_after) for _ in receivers]

    async def run(self) -> list[RemoteWorker]:
        """Returns once the worker is connected and has been told what to load. Raises NoPlace."""
        clock = asyncio.get_running_loop().time
        began = clock()
        packed = await self._cluster.packer.pack(Path(self._spec.load.model_dir))
        presents, placement = await self._placed()
        placed = clock()
        place = SharedPlace(placement, len(self._starts))
        for start in self._starts:
            start.worker.place = place
        await (self._start_alone(packed) if self._ranks is None else self._start_ranks(presents, packed))
        # No process loads before all are connected: the first that cannot load ends the others.
        for start in self._starts:
            start.load()
            worker = start.worker
            _log.info(
                "Worker %s has a place on node %s (%s) after %.1f s, and a process after %.1f s.",
                worker.label,
                worker.node.name,
                worker.node.host,
                placed - began,
                clock() - placed,
            )
        return [start.worker for start in self._starts]

    async def _placed(self) -> tuple[list[Present], Placement]:
        """Waits for the agents on some machines."""
        cluster, demand, guest = self._cluster, self._launcher.demand, self._launcher.guest
        if guest is not None:
            demand = replace(demand, memory=guest.reserve())
        if self._ranks is not None:
            demand = demand.share(self._ranks.processes)
        invitations = [start.invitation.text() for start in self._starts]
        placement = self._placement = await cluster.placer.place(invitations, demand, self._label)
        placement.ended.add_done_callback(self._place_ended)
        reports = asyncio.create_task(_report_lacks(placement, guest))
        try:
            return await _all(start.arrived(cluster.placement_timeout) for start in self._starts), placement
        except NoPlace as error:
            situation = cluster.placer.situation()
            raise NoPlace(f"{error}. {situation}" if situation else str(error)) from None
        finally:
            reports.cancel()

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
                "Worker %s: its place is gone (%s), but it answers: it serves on", self._label, ended.result()
            )

    async def _start_alone(self, packed: Packed) -> None:
        # The machine numbers its GPUs by itself, and shows a worker only its own.
        gpu_id = 0 if self._launcher.demand.num_gpus > 0 else None
        spec = replace(self._spec, load=msgspec.structs.replace(self._spec.load, gpu_id=gpu_id))
        await self._starts[0].connect(spec, packed, self._packages, self._receivers[0])

    async def _start_ranks(self, presents: list[Present], packed: Packed) -> None:
        """Ranks are numbered by machine, and meet at the first."""
        ranks = self._ranks
        assert ranks is not None  # noqa: S101 - see above
        order = seats(presents)
        self._starts = [self._starts[seat.place] for seat in order]
        first = self._starts[0].worker
        ports = ranks.ports
        first.send_to_agent(Meet(ports.first, ports.used))
        # Whether it is free there or not.
        ports.used += 1
        meeting = await first.meeting
        connecting = []
        for start, seat, receiver in zip(self._starts, order, self._receivers, strict=True):
            start.worker.rename(f"{self._label}-rank{seat.rank}")
            spec = rank_spec(self._spec, seat, meeting, has_gpus=self._launcher.demand.num_gpus > 0)
            connecting.append(start.connect(spec, packed, self._packages, receiver))
        await _all(connecting)

    def abandon(self) -> None:
        for start in self._starts:
            start.abandon()
        if self._placement is not None:
            self._placement.withdraw()

    def close(self) -> None:
        """Invitations that were not used are void."""
        for start in self._starts:
            start.close()


async def _report_lacks(placement: Placement, guest: Guest | None) -> None:
    """Has others make room, again and again while there is none."""
    while guest is not None:
        await asyncio.sleep(REPORTS)
        if lacks := placement.lacks:
            guest.make_room(lacks)


class ProcessStart:
    """One start of one process.

    Args:
        hub: where its agent and the process itself connect.
        spec: of the worker.
        label: of the worker.
        lost_after: seconds of silence after which server and agent give each other up.
    """

    def __init__(self, hub: Hub, spec: WorkerSpec, label: str, lost_after: float) -> None:
        self._hub = hub
        self._spec = spec
        self._lost_after = lost_after
        self._invitations: list[Invitation] = []
        self._packed: Packed | None = None
        self._channel: RemoteChannel | None = None
        self.worker = RemoteWorker(label, lost_after, self._send_archive, spec)
        self.invitation = self._invite(lambda: self.worker)

    async def arrived(self, seconds: float) -> Present:
        """Waits for the agent on some machine. Raises NoPlace."""
        present = await self._until(self.worker.present, seconds, "no machine was found")
        _check_versions(present)
        return present

    async def connect(self, spec: WorkerSpec, packed: Packed, packages: Needs, receiver: Receiver) -> None:
        """Has the process started as in ``spec``, and waits until it has connected. Raises NoPlace."""
        self._spec, self._packed = spec, packed
        worker, channel = self.worker, RemoteChannel(receiver, spec.frame_limit)
        self._channel = channel
        worker.send_to_agent(self._start(packed, packages, self._invite(lambda: channel)))
        started = await worker.started
        await self._until(channel.connected, CONNECT_TIME, "its process did not connect")
        worker.channel = channel
        if channel.is_local:
            channel.share(started.memory)

    def load(self) -> None:
        """Has it load the model, once it is connected."""
        self.worker.send(
            msgspec.structs.replace(self._spec.load, model_dir=self.worker.started.result().model_dir)
        )

    def _start(self, packed: Packed, packages: Needs, invitation: Invitation) -> Start:
        spec = self._spec
        hidden = spec.hidden_variables
        environment = {k: v for k, v in spec.own_environment().items() if k not in spec.named_files}
        return Start(
            model=(spec.load.model_name, spec.load.model_version),
            gpu_id=spec.load.gpu_id,
            digest=packed.digest,
            size=packed.size,
            environment=environment,
            threads=spec.threads,
            hidden="" if hidden is None else hidden.pattern,
            packages=packages,
            worker=invitation,
            lease=self._lost_after,
            files={name: path.read_bytes() for name, path in spec.named_files.items()},
        )

    async def _until(self, awaited: asyncio.Future[Outcome], seconds: float, otherwise: str) -> Outcome:
        """The result of ``awaited``; NoPlace if it does not come, or the agent is lost before."""
        either: set[asyncio.Future[Any]] = {awaited, self.worker.lost}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            return awaited.result()
        if self.worker.lost.done():
            raise NoPlace(self.worker.lost.result())
        raise NoPlace(f"{otherwise} within {seconds:g} s")

    def _invite(self, make: Callable[[], asyncio.BaseProtocol]) -> Invitation:
        invitation = self._hub.invite(make)
        self._invitations.append(invitation)
        return invitation

    def _send_archive(self, offset: int) -> None:
        """Lets the agent fetch the model's files."""
        packed = self._packed
        if packed is not None:
            invitation = self._invite(lambda: ArchiveSender(packed, offset))
            self.worker.send_to_agent(ArchiveTicket(invitation))

    def abandon(self) -> None:
        self.worker.kill()
        if self._channel is not None:
            self._channel.close()

    def close(self) -> None:
        """Invitations that were not used are void."""
        for invitation in self._invitations:
            self._hub.revoke(invitation)
        self.worker.on_archive = None


def _check_versions(present: Present) -> None:
    """Raises NoPlace if the machine could not run this server's workers."""
    if (present.version, present.python) != (__version__, PYTHON):
        raise NoPlace(
            f"node {present.node} ({present.host}) has modelserver {present.version} and Python "
            f"{present.python}, this server modelserver {__version__} and Python {PYTHON}"
        )


async def _all(works: Iterable[Coroutine[None, None, Outcome]]) -> list[Outcome]:
    """The results of all; the first failure ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # The error of one refers to this frame: a cycle, if that still had them.
        while tasks:
            tasks.pop().cancel()
