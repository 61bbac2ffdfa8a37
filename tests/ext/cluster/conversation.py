"""Conversations with real workers that agents of this machine have started."""

import asyncio
from pathlib import Path
from typing import Any

from modelserver.engine.demand import Demand
from modelserver.engine.pools.ranks import launch_worker
from modelserver.engine.pools.spec import Ranks, Receiver, WorkerSpec
from modelserver.engine.wire.messages import Load, Predict, Row
from modelserver.ext.cluster.launcher import Cluster, ClusterLauncher

_DEMAND = Demand()
HANDLER = """
import os, subprocess, sys, time

def handle(data, context):
    if data is None:
        return
    body = data[0]["body"]
    if body == b"print":
        print("out" * 10); print("err", file=sys.stderr)
    elif body == b"child":
        subprocess.Popen(["sleep", "100"])
    return [bytes(row["body"]) * 2 for row in data]
"""


class Conversation:
    """A worker on some machine, and what it says."""

    def __init__(self, handler: str = HANDLER, ranks: Ranks | None = None, **load) -> None:
        self.messages: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
        self.lost: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._handler = handler
        self._ranks = ranks
        self._load = load

    async def start(self, cluster: Cluster, folder: Path, demand: Demand = _DEMAND, guest: Any = None):
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "h.py").write_text(self._handler)
        about: dict[str, Any] = {"model_name": "m", **self._load}
        load = Load(
            model_version="1.0", model_dir=str(folder / "model"), handler="h.py:handle", batch_size=2, **about
        )
        launcher = ClusterLauncher(cluster, demand, guest=guest)
        spec = WorkerSpec(load, threads=1, frame_limit=1 << 26, ranks=self._ranks, launcher=launcher)
        self.worker = await launch_worker(spec, "W-1-m", Receiver(self._take, self._lose))
        return self.worker

    def _take(self, message, tail: memoryview) -> None:
        self.messages.put_nowait((message, bytes(tail)))

    def _lose(self, reason: str | None) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    async def next(self) -> tuple[Any, bytes]:
        return await asyncio.wait_for(self.messages.get(), 20)


def predict(number: int, body: bytes) -> tuple[Predict, list[bytes]]:
    """A batch of one row, with its bytes."""
    return Predict(number, [Row(f"r{number}", len(body))]), [body]
