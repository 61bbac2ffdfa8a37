"""KServe's model repository, over REST and gRPC."""

from __future__ import annotations

from modelserver.ext.repository.rpcs import repository_rpcs
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """Always on."""
    # An address that has both roles gets the routes twice; the first ones serve.
    host.routes("management", "modelserver.ext.repository.routes", everybody=True)
    host.routes("inference", "modelserver.ext.repository.routes", everybody=False)
    for name, respond in repository_rpcs(host.services).items():
        host.rpc(name, respond)
