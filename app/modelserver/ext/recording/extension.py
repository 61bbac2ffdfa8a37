"""Recordings: requests and answers, for the client that runs ``modelserver record``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.recording.recorder import SHARE, Recorder
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """On with ``allow_recording``."""

    async def open(self, host: Host) -> None:
        outgoing = host.services.outgoing
        recorder = Recorder(count=outgoing.add, most=outgoing.limit // SHARE)

        def add(app: Application, services: Services) -> None:
            from modelserver.ext.recording.routes import add_recording  # noqa: PLC0415 - with FastAPI

            add_recording(app, services.registry, recorder)

        async def settle(_: float) -> None:
            recorder.close()

        host.watch(recorder.watch)
        host.routes("management", add)
        host.settle(settle)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
