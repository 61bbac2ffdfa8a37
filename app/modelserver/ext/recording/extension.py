"""Recordings: requests and answers, for the client that runs ``modelserver record``."""

from __future__ import annotations

from modelserver.ext.recording.recorder import SHARE, Recorder
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On with ``allow_recording``."""
    outgoing = host.services.outgoing
    recorder = Recorder(count=outgoing.add, most=outgoing.limit // SHARE)

    async def settle(_: float) -> None:
        recorder.close()

    host.watch(recorder.watch)
    host.routes("management", "modelserver.ext.recording.routes", recorder)
    host.settle(settle)
