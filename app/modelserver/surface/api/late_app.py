"""The application of a listener, built when it is needed.

Building imports FastAPI, which takes longer than everything else that a server needs before it can listen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modelserver.surface.api.services import AddRoutes, Role, Services

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_ONE_AT_A_TIME = threading.Lock()


class LateApp:
    """The application of a listener with these roles, built by :meth:`build` or for its first request.

    Args:
        roles: of the listener.
        services: for the routes.
        added: adds the routes of extensions, by role.
        mounts: applications that answer at a path and below it.
    """

    def __init__(
        self,
        roles: set[Role],
        services: Services,
        added: Sequence[tuple[Role, AddRoutes]] = (),
        mounts: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._roles = roles
        self._services = services
        self._added = [add for role, add in added if role in roles]
        self._mounts = mounts or {}
        self._building: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for path, mounted in self._mounts.items():
            if scope["path"] == path or scope["path"].startswith(f"{path}/"):
                await mounted(scope, receive, send)
                return
        app = await self.build()
        await app(scope, receive, send)

    async def build(self) -> ASGIApp:
        """The application; imports and builds it in a thread, once."""
        if self._building is None:
            self._building = asyncio.ensure_future(asyncio.to_thread(self._built))
        return await asyncio.shield(self._building)

    def _built(self) -> ASGIApp:
        with _ONE_AT_A_TIME:
            from modelserver.surface.api.app import build_app  # noqa: PLC0415 - see above

            return build_app(self._roles, self._services, self._added)
