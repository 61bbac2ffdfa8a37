"""Starts workers on other machines: finds a place, has its agent start the worker, and connects the two."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from modelserver import __version__
from modelserver.cluster.channel import RemoteChannel
from modelserver.cluster.packing import Packer
from modelserver.cluster.remote import RemoteWorker
from modelserver.cluster.sending import ArchiveSender
from modelserver.demand import Demand
from modelserver.pools.spec import NoPlace
from modelserver.wire.cluster import ArchiveTicket, Start
from modelserver.wire.messages import METRICS_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.cluster.hub import Hub
    from modelserver.cluster.packing import Packed
    from modelserver.cluster.placing import Placer
    from modelserver.pools.spec import WorkerSpec
    from modelserver.wire.cluster import Present, Started
    from modelserver.wire.greeting import Invitation
    from modelserver.wire.messages import Load, ToServer

_log = logging.getLogger("modelserver.workers")
Outcome = TypeVar("Outcome")

# Seconds for the worker's process to connect once its agent has started it.
CONNECT_TIME = 30.0
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


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
    """Starts the workers of one model version on other machines; ``demand`` is what each needs there."""

    cluster: Cluster
    demand: Demand = field(default_factory=Demand)
    requirements: str = ""
    use_venv: bool = False

    async def __call__(
        self,
        spec: WorkerSpec,
        label: str,
        on_message: Callable[[ToServer, memoryview], None],
        on_lost: Callable[[str | None], None],
    ) -> RemoteWorker:
        """As :class:`~modelserver.pools.spec.Launcher`. Raises NoPlace if there is no machine."""
        start = _Start(self, spec, label, on_message, on_lost)
        try:
            return await start.run()
        except BaseException:
            start.abandon()
            raise
        finally:
            start.close()


class _Start:
    """One start of one worker."""

    def __init__(
        self,
        launcher: ClusterLauncher,
        spec: WorkerSpec,
        label: str,
        on_message: Callable[[ToServer, memoryview], None],
        on_lost: Callable[[str | None], None],
    ) -> None:
        self._launcher = launcher
        self._cluster = launcher.cluster
        # The machine's cores are shared by Ray, not by this server.
        self._spec = replace(spec, threads=max(1, int(launcher.demand.num_cpus)))
        self._invitations: list[Invitation] = []
        self._packed: Packed | None = None
        self.worker = RemoteWorker(
            label, self._cluster.lost_after, on_message, self._send_archive, spec.measured
        )
        self._channel = RemoteChannel(on_message, on_lost, spec.frame_limit)

    async def run(self) -> RemoteWorker:
        """Returns once the worker is connected and has been told what to load. Raises NoPlace."""
        worker, loop = self.worker, asyncio.get_running_loop()
        began = loop.time()
        packed = self._packed = await self._cluster.packer.pack(Path(self._spec.load.model_dir))
        present = await self._placed()
        _check_versions(present)
        placed = loop.time()
        worker.say(self._start(packed))
        started: Started = await worker.started
        await self._until(self._channel.connected, CONNECT_TIME, "its process did not connect")
        worker.channel = self._channel
        if self._channel.is_local:
            self._channel.share(started.memory)
        self._channel.send(msgspec.structs.replace(self._load(), model_dir=started.model_dir))
        _log.info(
            "Worker %s has a place on node %s (%s) after %.1f s, and a process after %.1f s.",
            *(worker.label, worker.node.name, worker.node.host, placed - began, loop.time() - placed),
        )
        return worker

    async def _placed(self) -> Present:
        """Waits for the agent on some machine."""
        cluster, worker = self._cluster, self.worker
        invitation = self._invite(lambda: worker)
        placement = worker.placement = await cluster.placer.place(
            invitation.text(), self._launcher.demand, worker.label
        )
        placement.ended.add_done_callback(self._place_ended)
        try:
            return await self._until(worker.present, cluster.placement_timeout, "no machine was found")
        except NoPlace as error:
            situation = cluster.placer.situation()
            raise NoPlace(f"{error}. {situation}" if situation else str(error)) from None

    def _place_ended(self, ended: asyncio.Future[str]) -> None:
        """Before its agent is there, this ends the start; later its connection tells whether it lives."""
        if ended.cancelled():
            return
        if not self.worker.present.done():
            self.worker.lose(ended.result())
        elif self.worker.is_alive:
            _log.warning(
                "Worker %s: its place is gone (%s), but it answers: it serves on",
                *(self.worker.label, ended.result()),
            )

    def _start(self, packed: Packed) -> Start:
        spec = self._spec
        hidden = spec.hidden_variables
        environment = spec.own_environment()
        metrics = environment.pop(METRICS_CONFIG, None)
        return Start(
            load=self._load(),
            digest=packed.digest,
            size=packed.size,
            environment=environment,
            threads=spec.threads,
            hidden="" if hidden is None else hidden.pattern,
            requirements=self._launcher.requirements,
            use_venv=self._launcher.use_venv,
            worker=self._invite(lambda: self._channel),
            lease=self._cluster.lost_after,
            metrics=b"" if metrics is None else Path(metrics).read_bytes(),
        )

    def _load(self) -> Load:
        """The machine numbers its GPUs by itself, and shows a worker only its own."""
        gpu_id = 0 if self._launcher.demand.num_gpus > 0 else None
        return msgspec.structs.replace(self._spec.load, gpu_id=gpu_id)

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
        invitation = self._cluster.hub.invite(make)
        self._invitations.append(invitation)
        return invitation

    def _send_archive(self, offset: int) -> None:
        """Lets the agent fetch the model's files."""
        packed = self._packed
        if packed is not None:
            invitation = self._invite(lambda: ArchiveSender(packed, offset))
            self.worker.say(ArchiveTicket(invitation))

    def abandon(self) -> None:
        """Ends what has been started."""
        self.worker.kill()
        self._channel.close()
        self.worker.leave()

    def close(self) -> None:
        """Invitations that were not used are void."""
        for invitation in self._invitations:
            self._cluster.hub.revoke(invitation)


def _check_versions(present: Present) -> None:
    """Raises NoPlace if the machine could not run this server's workers."""
    if (present.version, present.python) != (__version__, _PYTHON):
        raise NoPlace(
            f"node {present.node} ({present.host}) has modelserver {present.version} and Python "
            f"{present.python}, this server modelserver {__version__} and Python {_PYTHON}"
        )
