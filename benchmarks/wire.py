"""A body from the server to a worker, and its answer back, without HTTP: by the socket and by shared memory.

A worker of each way, asked in turns, some bodies at a time; all on one core, because waking a process on
another one costs more than what is compared. What else a machine does only adds to a figure: the lower
quartile of many short ones stands for each.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import uvloop

from modelserver.engine.pools import process
from modelserver.engine.pools.process import launch
from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.wire.messages import Load, Predict, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.engine.pools.process import WorkerProcess

HANDLERS = """
def noop(data, context):
    return [b"ok" for _ in data or []]

def same(data, context):
    return [row["body"] for row in data or []]
"""
TURN_BYTES = 5_000_000  # that one turn sends at most, if it is not a single body


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one body there and back: seconds that pass, and processor seconds of server and worker."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways of bodies of ``size`` bytes for a handler."""

    handler: str
    size: int
    socket: Cost
    memory: Cost


class Talk:
    """A worker that is asked one body after the other."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[int] = asyncio.Queue()
        self._process: WorkerProcess | None = None
        self._sequence = 0

    async def start(self, folder: Path, handler: str, *, memory: bool) -> Talk:
        """With a process of its own, which can use shared memory or not."""
        load = Load("wire", "1.0", str(folder), f"handlers.py:{handler}", 1, max_response_size=1 << 30)
        create = process.create if memory else lambda: None
        with mock.patch.object(process, "create", create):
            self._process = await launch(WorkerSpec(load, 1, 1 << 30), "wire", self._hear, lambda _: None)
        await self._answers.get()
        return self

    def _hear(self, _: object, tail: memoryview) -> None:
        # The server makes bytes of each answer, too.
        self._answers.put_nowait(len(bytes(tail)))

    async def ask(self, body: bytes, times: int) -> Cost:
        """The cost of one of so many. Raises RuntimeError if an answer is missing."""
        assert self._process is not None
        began, used = time.perf_counter(), self._cpu()
        for _ in range(times):
            self._process.send(Predict(self._sequence, [Row("row", len(body))]), [body])
            self._sequence += 1
            await self._answers.get()
        return Cost((time.perf_counter() - began) / times, (self._cpu() - used) / times)

    def _cpu(self) -> float:
        assert self._process is not None
        worker = Path(f"/proc/{self._process.pid}/schedstat").read_text("ascii").split()[0]
        return time.process_time() + int(worker) / 1e9

    async def end(self) -> None:
        """Without a word."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


def compare(folder: Path, sizes: Sequence[int], turns: int) -> list[Comparison]:
    """Both handlers, all sizes, so many turns of each way; ``folder`` is for the handlers' file."""
    (folder / "handlers.py").write_text(HANDLERS, "utf-8")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return uvloop.run(_compare(folder, sizes, turns))
    finally:
        os.sched_setaffinity(0, cores)


async def _compare(folder: Path, sizes: Sequence[int], turns: int) -> list[Comparison]:
    found = []
    for handler in ("noop", "same"):
        ways = [await Talk().start(folder, handler, memory=memory) for memory in (False, True)]
        for size in sizes:
            body, times = os.urandom(size), max(1, min(50, TURN_BYTES // size))
            costs: list[list[Cost]] = [[], []]
            for _ in range(turns):
                for talk, taken in zip(ways, costs, strict=True):
                    taken.append(await talk.ask(body, times))
            found.append(Comparison(handler, size, *map(lower_quartile, costs)))
        for talk in ways:
            await talk.end()
    return found


def lower_quartile(costs: Sequence[Cost]) -> Cost:
    """Of each figure by itself."""
    quarter = len(costs) // 4
    return Cost(sorted(cost.seconds for cost in costs)[quarter], sorted(cost.cpu for cost in costs)[quarter])
