"""Workers on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from modelserver.engine.demand import Demand
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import ConfigError
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.placing import NoPlace, Placer
from modelserver.extension import Host
from modelserver.models.registry import Registry
from modelserver.models.settings.address import HostPort
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

# Makes the cluster of the settings: the workers' address, and who finds machines.

# Machines that are none: agents as processes of this machine, to try workers on a cluster without one.

# Seconds for an agent to end by itself.
_GRACE = 5.0


class ProcessPlacement:
    """The agents' ``processes`` of one worker; ``task`` ends with the last."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self.processes = processes
        # There is always a place.
        self.lacks: Mapping[str, Mapping[str, float]] = {}
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.gather(*map(self._watch, processes))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.ended.done():
            self.ended.set_result(f"its agent's process ended with {code}")

    def withdraw(self) -> None:
        """Ends the agents, which end their workers."""
        for process in self.processes:
            if process.returncode is None:
                process.terminate()
                asyncio.get_running_loop().call_later(_GRACE, self._kill, process)

    @staticmethod
    def _kill(process: asyncio.subprocess.Process) -> None:
        """The process may be stopped, or hang."""
        if process.returncode is None:
            process.kill()


class ProcessPlacer:
    """Starts agents here, as many as are asked for; ``placements`` are those that may still run.

    Each is a machine of its own; those of one worker that packs its processes are one together.
    """

    def __init__(self) -> None:
        self.placements: list[ProcessPlacement] = []
        self._count = 0

    async def place(self, invitations: Sequence[str], demand: Demand, label: str) -> ProcessPlacement:
        """Starts agents, which read their invitations from a pipe."""
        started: list[asyncio.subprocess.Process] = []
        try:
            for invitation in invitations:
                if not started or demand.placement != "pack":
                    self._count += 1
                started.append(await self._start(invitation, f"process-{self._count}"))
        except BaseException:
            for process in started:
                process.kill()
            raise
        self.placements = [place for place in self.placements if not place.task.done()]
        placement = ProcessPlacement(started)
        self.placements.append(placement)
        return placement

    async def _start(self, invitation: str, node: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "modelserver.ext.cluster.node", node]
        try:
            # asyncio's own pipe to a process would stay as a reference cycle after the process has ended.
            reading, writing = map(os.fdopen, os.pipe(), ("rb", "wb"))
            with reading:
                with writing:
                    writing.write(invitation.encode() + b"\n")
                return await asyncio.create_subprocess_exec(
                    *command, cwd="/", stdin=reading, start_new_session=True
                )
        except OSError as error:
            raise NoPlace(f"an agent's process cannot be started: {error}") from error

    def situation(self) -> str:
        """Nothing: there is always a place."""
        return ""

    async def close(self) -> None:
        for placement in self.placements:
            placement.withdraw()
        if self.placements:
            await asyncio.wait([placement.task for placement in self.placements], timeout=_GRACE + 1.0)


_log = logging.getLogger("modelserver.workers")

_LABELS = ("model_name", "model_version", "node")
_ANY = {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound


def check_addresses(settings: Settings) -> None:
    """Raises ConfigError for a workers' address that they cannot reach, or that another listener has."""
    ours = _endpoint("worker_address", settings.worker_address)
    for name in ("inference_address", "management_address", "metrics_address"):
        address = getattr(settings, name)
        if ours.port and address.scheme != "unix" and address.port == ours.port:
            raise ConfigError(
                f"Invalid configuration: worker_address={settings.worker_address}: a port of its own is "
                f"needed, not that of {name}={address}"
            )
    if settings.worker_launcher != "ray":
        return
    if settings.ray_address is None:
        raise ConfigError("Invalid configuration: worker_launcher=ray: ray_address is needed, too")
    rays = _endpoint("ray_address", settings.ray_address)
    if ours.is_loopback and not rays.is_loopback:
        raise ConfigError(
            f"Invalid configuration: worker_address={settings.worker_address}: an address that the machines "
            f"of the cluster at ray_address={settings.ray_address} can reach is needed"
        )


def _endpoint(name: str, text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"Invalid configuration: {name}={error}") from None


@contextlib.asynccontextmanager
async def open_cluster(settings: Settings, workdir: Path) -> AsyncIterator[Cluster]:
    """The cluster, listening at the workers' address.

    Raises ConfigError if an address is wrong or taken, or packages are missing.
    """
    check_addresses(settings)
    address = HostPort.parse(settings.worker_address)
    host = address.host
    certificate = None if settings.worker_tls == "off" else _certificate(host)
    bound = _bind(settings.worker_address)
    hub = Hub(bound, _advertised(host, settings.ray_address), certificate=certificate, folder=workdir)
    await hub.open()
    unprotected = certificate is None and not address.is_loopback
    _log.info("Workers connect to %s:%d%s", host, hub.port, " WITHOUT ENCRYPTION" if unprotected else "")
    placer = _placer(settings)
    try:
        yield Cluster(
            hub, placer, placement_timeout=settings.placement_timeout, lost_after=settings.worker_lost_timeout
        )
    finally:
        await placer.close()
        hub.close()


def _placer(settings: Settings) -> Placer:
    if settings.worker_launcher == "agents":
        return ProcessPlacer()
    from modelserver.ext.cluster.ray_placer import RayPlacer  # noqa: PLC0415 - only where Ray is used

    return RayPlacer(settings.ray_address or "", str(settings.ray_python or sys.executable))


def _certificate(host: str) -> Certificate:
    """A certificate of this server, which agents get with their invitation: they trust no other."""
    try:
        return Certificate.throwaway([host])
    except ImportError as error:
        raise ConfigError(
            f"worker_launcher: the package {error.name} is needed for TLS: pip install modelserver[tls]"
        ) from error


def _bind(endpoint: str) -> socket.socket:
    try:
        with contextlib.ExitStack() as undo:
            bound = undo.enter_context(HostPort.parse(endpoint).bind())
            # Several may bind the same port, but only one listens.
            bound.listen()
            undo.pop_all()
    except OSError as error:
        raise ConfigError(f"Cannot listen on worker_address={endpoint}: {error.strerror or error}") from error
    return bound


def _advertised(host: str, ray_address: str | None) -> str:
    """The host that other machines connect to; for a wildcard address, that of the route to the cluster."""
    if host not in _ANY:
        return host
    if ray_address is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing: it only chooses the interface.
            probe.connect(HostPort.parse(ray_address))
        except OSError as error:
            raise ConfigError(f"ray_address={ray_address}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


def show_nodes(metrics: ServerMetrics, registry: Registry) -> None:
    """Shows the loaded workers of each machine and their memory; a machine without any is not shown."""
    count = metrics.gauge("modelserver_node_workers", "Loaded workers on another machine.", _LABELS)
    memory = "Resident memory of workers on another machine."
    resident = metrics.gauge("modelserver_node_worker_memory_bytes", memory, _LABELS)

    def render() -> None:
        for family in (count, resident):
            for values, _ in family.series:
                family.remove(*values)
        for model in registry.versions():
            if model.metrics.series.is_hidden:
                continue
            for worker in model.pool.workers:
                node = worker.node
                if node is not None and worker.is_ready:
                    values = model.name, model.version, node.name
                    count.labels(*values).add()
                    resident.labels(*values).add(node.resident)

    metrics.on_render(render)


async def extend(host: Host) -> None:
    """On unless ``worker_launcher=local``."""
    show_nodes(host.services.metrics, host.registry)
    host.launch(await host.closing.enter_async_context(open_cluster(host.settings, host.workdir)))
