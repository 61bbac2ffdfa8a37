"""Makes the cluster of the settings: the workers' address, and who finds machines."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.processes import ProcessPlacer
from modelserver.models.settings.address import HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from modelserver.ext.cluster.placing import Placer
    from modelserver.models.settings.settings import Settings
    from modelserver.surface.tls.context import Certificate

_log = logging.getLogger("modelserver.workers")

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound


@contextlib.asynccontextmanager
async def open_cluster(settings: Settings, workdir: Path) -> AsyncIterator[Cluster]:
    """The cluster, listening at the workers' address.

    Raises ConfigError if the address is taken, or packages are missing.
    """
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
            hub,
            placer,
            placement_timeout=settings.placement_timeout,
            lost_after=settings.worker_lost_timeout,
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
        from modelserver.surface.tls.throwaway import make_certificate  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ConfigError(
            f"worker_launcher: the package {error.name} is needed for TLS: pip install modelserver[tls]"
        ) from error
    return make_certificate([host])


def _bind(endpoint: str) -> socket.socket:
    host, port = HostPort.parse(endpoint)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        # Several may bind the same port, but only one listens.
        bound.listen()
    except OSError as error:
        bound.close()
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
