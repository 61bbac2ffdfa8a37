"""The Open Inference Protocol besides inference, with Triton's extensions, over REST and gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.triton.rpcs import triton_rpcs
from modelserver.ext.triton.statistics import sum_batches
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """On where the protocol is."""

    async def open(self, host: Host) -> None:
        def add(app: Application, services: Services) -> None:
            from modelserver.ext.triton.routes import add_triton  # noqa: PLC0415 - with FastAPI

            add_triton(app, services)

        host.routes("inference", add)
        host.prepare(sum_batches)
        for name, respond in triton_rpcs(host.services).items():
            host.rpc(name, respond)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
