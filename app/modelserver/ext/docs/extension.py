"""``/docs``: what a listener serves, as a page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """Always on."""

    async def open(self, host: Host) -> None:
        def add(app: Application, _: Services) -> None:
            from modelserver.ext.docs.page import add_page  # noqa: PLC0415 - with FastAPI

            add_page(app)

        # An address that has several roles gets the route several times; the first one serves.
        host.routes("inference", add)
        host.routes("management", add)
        host.routes("metrics", add)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
