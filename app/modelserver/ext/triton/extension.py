"""The Open Inference Protocol besides inference, with Triton's extensions, over REST and gRPC."""

from __future__ import annotations

from modelserver.ext.triton.rpcs import triton_rpcs
from modelserver.ext.triton.statistics import sum_batches
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On where the protocol is."""
    host.routes("inference", "modelserver.ext.triton.routes")
    host.prepare(sum_batches)
    for name, respond in triton_rpcs(host.services).items():
        host.rpc(name, respond)
