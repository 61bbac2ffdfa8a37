"""The start of one process on another machine: a worker, or one of its ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from modelserver import __version__
from modelserver.engine.wire.messages import METRICS_CONFIG
from modelserver.ext.cluster.channel import RemoteChannel
from modelserver.ext.cluster.messages import PYTHON, ArchiveTicket, Start
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.remote import RemoteWorker
from modelserver.ext.cluster.sending import ArchiveSender

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.engine.pools.spec import OnLost, OnMessage, WorkerSpec
    from modelserver.engine.wire.greeting import Invitation
    from modelserver.engine.wire.messages import ToServer
    from modelserver.ext.cluster.hub import Hub
    from modelserver.ext.cluster.messages import Present
    from modelserver.ext.cluster.packing import Packed

Outcome = TypeVar("Outcome")

# Seconds for the process to connect once its agent has started it.
CONNECT_TIME = 30.0


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
        self._on_message: OnMessage
        self.worker = RemoteWorker(label, lost_after, self._hear, self._send_archive, spec.measured)
        self.invitation = self._invite(lambda: self.worker)

    def _hear(self, message: ToServer, tail: memoryview) -> None:
        self._on_message(message, tail)

    async def arrived(self, seconds: float) -> Present:
        """Waits for the agent on some machine. Raises NoPlace."""
        present = await self._until(self.worker.present, seconds, "no machine was found")
        _check_versions(present)
        return present

    async def connect(
        self,
        spec: WorkerSpec,
        packed: Packed,
        packages: tuple[str, bool],
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        """Has the process started as in ``spec``, and waits until it has connected. Raises NoPlace.

        ``packages``: the model's requirements file, and whether its environment is a ``venv``.
        """
        self._spec, self._packed, self._on_message = spec, packed, on_message
        worker, channel = self.worker, RemoteChannel(on_message, on_lost, spec.frame_limit)
        self._channel = channel
        worker.say(self._start(packed, packages, self._invite(lambda: channel)))
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

    def _start(self, packed: Packed, packages: tuple[str, bool], invitation: Invitation) -> Start:
        spec = self._spec
        hidden = spec.hidden_variables
        environment = spec.own_environment()
        metrics = environment.pop(METRICS_CONFIG, None)
        requirements, use_venv = packages
        return Start(
            load=spec.load,
            digest=packed.digest,
            size=packed.size,
            environment=environment,
            threads=spec.threads,
            hidden="" if hidden is None else hidden.pattern,
            requirements=requirements,
            use_venv=use_venv,
            worker=invitation,
            lease=self._lost_after,
            metrics=b"" if metrics is None else Path(metrics).read_bytes(),
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
            self.worker.say(ArchiveTicket(invitation))

    def abandon(self) -> None:
        self.worker.kill()
        if self._channel is not None:
            self._channel.close()

    def close(self) -> None:
        """Invitations that were not used are void."""
        for invitation in self._invitations:
            self._hub.revoke(invitation)


def _check_versions(present: Present) -> None:
    """Raises NoPlace if the machine could not run this server's workers."""
    if (present.version, present.python) != (__version__, PYTHON):
        raise NoPlace(
            f"node {present.node} ({present.host}) has modelserver {present.version} and Python "
            f"{present.python}, this server modelserver {__version__} and Python {PYTHON}"
        )
