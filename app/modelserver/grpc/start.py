"""Starts gRPC late, and imports it in a thread, so that it does not delay HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from modelserver.api.app import Services
    from modelserver.grpc.calls import OnCall
    from modelserver.grpc.server import GrpcServers
    from modelserver.tls.context import Certificate

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

_log = logging.getLogger("modelserver.grpc")


async def open_grpc(
    services: Services, on_call: OnCall, held: Sequence[socket.socket], certificate: Certificate | None
) -> GrpcServers | None:
    """The servers, listening on the ``held`` ports; None if gRPC is off or not installed.

    Raises:
        ConfigError: a port is not available.
    """
    if not held:
        return None
    with _without_fork_handlers():
        try:
            made = await asyncio.to_thread(import_module, "modelserver.grpc.server")
        except ImportError as error:
            for holder in held:
                holder.close()
            _log.warning("gRPC is off: %s; pip install grpcio grpcio-reflection protobuf", error)
            return None
        servers: GrpcServers = made.GrpcServers(services, on_call, certificate)
        await servers.open(held)
    return servers


@contextlib.contextmanager
def _without_fork_handlers() -> Iterator[None]:
    """Turns off gRPC's fork handlers, which can crash workers, started by fork and exec. gRPC reads the
    variable when it starts; workers, which may use gRPC themselves, do not get it.
    """
    before = os.environ.get(_FORK_SUPPORT)
    os.environ[_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORK_SUPPORT]
        else:
            os.environ[_FORK_SUPPORT] = before
