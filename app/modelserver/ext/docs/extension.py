"""``/docs``: what a listener serves, as a page for people."""

from __future__ import annotations

from modelserver.extension import Host


async def extend(host: Host) -> None:
    """Always on."""
    # An address that has several roles gets the route several times; the first one serves.
    host.routes("inference", "modelserver.ext.docs.page")
    host.routes("management", "modelserver.ext.docs.page")
    host.routes("metrics", "modelserver.ext.docs.page")
