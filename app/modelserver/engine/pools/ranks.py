"""Workers that span several processes or devices (reference 18.1, 18.3).

A worker of ranks is N processes, each with the variables that ``torchrun`` would set: RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the like, and each with its own socket. Every process gets every
batch (with the parallel type ``pp`` only rank 0, as in TorchServe), and only the answers of rank 0 count. The
worker has loaded when all ranks have; if any rank ends, all are ended and started again.

Unlike in TorchServe, there is no ``torchrun`` process in between: the server starts the ranks itself, so
their output, exits and errors are reported like those of any worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from modelserver.engine.pools.process import launch
from modelserver.engine.pools.spec import Node, OnLost, OnMessage, Process, Ranks, WorkerSpec
from modelserver.engine.pools.variables import THREAD_VARIABLES
from modelserver.engine.telemetry.gpus import VISIBLE
from modelserver.engine.wire.messages import (
    Broken,
    Cancelled,
    Loaded,
    LoadFailed,
    Predict,
    Result,
    Stop,
    ToServer,
    ToWorker,
)

_log = logging.getLogger("modelserver.workers")

# Seconds for rank 0 to finish a batch that failed at another rank, for which it may wait forever.
FAILED_GRACE = 10.0
# Seconds for the other ranks to exit after rank 0 has stopped.
FOLLOWERS_GRACE = 2.0


def lone_spec(spec: WorkerSpec, ranks: Ranks) -> WorkerSpec:
    """The spec for one process that sees a group of devices, numbered from 0."""
    devices = ranks.groups.get(-1 if spec.load.gpu_id is None else spec.load.gpu_id, ())
    load = msgspec.structs.replace(spec.load, gpu_id=0 if devices else None)
    environment = {**spec.extra_environment, **visible(devices)}
    return replace(spec, load=load, extra_environment=environment, spawner=None, ranks=None)


def _variables(
    rank: int, count: int, local: tuple[int, int], machine: tuple[int, int], meeting: tuple[str, int]
) -> dict[str, str]:
    """The variables that torchrun sets for a process."""
    host, port = meeting
    ranks = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local[0], "GROUP_RANK": machine[0]}
    sizes = {"WORLD_SIZE": count, "ROLE_WORLD_SIZE": count, "LOCAL_WORLD_SIZE": local[1]}
    others = {"GROUP_WORLD_SIZE": machine[1], "MASTER_PORT": port}
    restarts = {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    return {
        "MASTER_ADDR": host,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": f"modelserver_{port}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LOGLEVEL": "INFO",
        **{name: str(number) for name, number in {**ranks, **sizes, **others, **restarts}.items()},
    }


def visible(devices: Sequence[int], server: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable that limits a process to these devices, numbered as the server sees them."""
    if not devices:
        return {}
    names = [name.strip() for name in server.get(VISIBLE, "").split(",") if name.strip()]
    known = {device: names[device] if device < len(names) else str(device) for device in devices}
    return {VISIBLE: ",".join(known[device] for device in devices)}


@dataclass(slots=True, eq=False)
class RankGroup:
    """The processes of one worker, with the interface of a single process.

    ``release`` is called once all have ended. ``failed_rank`` could not load, or has ended first.
    ``recalls`` is False: the ranks might not agree on which batches to return.
    """

    ranks: Ranks
    on_message: OnMessage
    on_lost: OnLost
    release: Callable[[], None] | None = None
    members: list[Process] = field(default_factory=list)
    failed_rank: int | None = None
    recalls: bool = False
    _loaded: dict[int, Loaded] = field(default_factory=dict)
    _answered: int = -1
    _stopping: bool = False
    _killed: bool = False
    _lost: bool = False

    def member_spec(
        self,
        spec: WorkerSpec,
        *,
        rank: int,
        local: tuple[int, int],
        machine: tuple[int, int],
        meeting: tuple[str, int],
        gpus: tuple[int | None, str] = (None, ""),
    ) -> WorkerSpec:
        """The spec for the process of this rank, which is number ``local[0]`` of ``local[1]`` on its machine.

        That is ``machine[0]`` of ``machine[1]``; all ranks meet at the host and port of ``meeting``. It gets
        the GPU of its local rank among its worker's devices, or number ``gpus[0]`` of those in ``gpus[1]``. A
        failed batch is not retried in parts, as ranks could choose different parts.
        """
        ranks = self.ranks
        alone, count, (gpu_id, devices) = lone_spec(spec, ranks), ranks.processes, gpus
        load = msgspec.structs.replace(
            alone.load,
            gpu_id=gpu_id if alone.load.gpu_id is None else local[0],
            isolate=spec.load.isolate and count == 1,
            rank=rank,
            ranks=count,
        )
        environment = {
            **alone.extra_environment,
            **_variables(rank, count, local, machine, meeting),
            **(dict.fromkeys(THREAD_VARIABLES, str(ranks.threads)) if ranks.threads else {}),
            **({VISIBLE: devices} if devices else {}),
        }
        return replace(alone, load=load, threads=max(1, spec.threads // count), extra_environment=environment)

    @property
    def pid(self) -> int:
        """That of rank 0."""
        return self.members[0].pid

    @property
    def pids(self) -> list[int]:
        """The process ids of all ranks."""
        return [pid for member in self.members for pid in member.pids]

    @property
    def node(self) -> Node | None:
        """That of rank 0; None: this machine."""
        return self.members[0].node

    @property
    def round_trip(self) -> float:
        """That to the farthest, as all have to get a batch."""
        return max(member.round_trip for member in self.members)

    def recall(self, sequence: int) -> int:
        """Raises OSError."""
        raise OSError("ranks return nothing")

    @property
    def batches_started(self) -> int | None:
        """How many batches any of them had begun when all had ended; None if unknown."""
        counts = [member.batches_started for member in self.members]
        known = [count for count in counts if count is not None]
        return max(known) if known and len(known) == len(counts) else None

    @property
    def for_memory(self) -> bool | None:
        """Whether the system killed one for lack of memory; None if unknown. Call it once."""
        return self.members[self.failed_rank or 0].for_memory

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        """Sends to all ranks; batches only to rank 0 for some types.

        Cancellations are not sent: ranks would receive them at different times and diverge.
        """
        if isinstance(message, Cancelled):
            return
        if isinstance(message, Stop):
            self._stopping = True
        alone = isinstance(message, Predict) and not self.ranks.broadcast
        for member in self.members[:1] if alone else self.members:
            member.send(message, bodies)

    def allow(self, limit: int) -> None:
        """Changes the limit for the frames of each, in bytes."""
        for member in self.members:
            member.allow(limit)

    def kill(self) -> None:
        """Ends all processes without asking."""
        self._killed = True
        for member in self.members:
            member.kill()

    async def wait(self) -> str:
        """Waits until a process ends, then ends the others; returns how the first ended."""
        how = await self._wait()
        if self.release is not None:
            self.release()
        return how

    async def _wait(self) -> str:
        ends = {asyncio.ensure_future(member.wait()): rank for rank, member in enumerate(self.members)}
        pending = set(ends)
        first: tuple[int, str] | None = None
        while first is None:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            ended = sorted((ends[end], end.result()) for end in done)
            first = next((end for end in ended if not self._may_end(*end)), None)
        rank, how = first
        as_requested = self._stopping and rank == 0
        if pending and as_requested:
            _, pending = await asyncio.wait(pending, timeout=FOLLOWERS_GRACE)
        killed = self._killed
        self.kill()
        if pending:
            await asyncio.wait(pending)
        if killed or as_requested:
            return "was killed by SIGKILL" if killed else how
        self.failed_rank = rank if self.failed_rank is None else self.failed_rank
        return f"lost rank {rank}, which {how}"

    def _may_end(self, rank: int, how: str) -> bool:
        """Whether this is a rank that stopped as requested before rank 0 has finished."""
        return self._stopping and not self._killed and rank > 0 and how == "exited with status 0"

    def last_output(self, lines: int = 20) -> str:
        """That of the rank that failed, else of rank 0."""
        return self.members[self.failed_rank or 0].last_output(lines)

    # -- messages of the ranks

    def receive(self, rank: int, message: ToServer, tail: memoryview) -> None:
        """Receives a message of one rank."""
        if isinstance(message, Loaded):
            self._loaded[rank] = message
            if len(self._loaded) == self.ranks.processes:
                slowest = max(loaded.seconds for loaded in self._loaded.values())
                self.on_message(msgspec.structs.replace(self._loaded[0], seconds=slowest), memoryview(b""))
        elif isinstance(message, LoadFailed):
            if self.failed_rank is None:
                self.failed_rank = rank
                self.on_message(
                    msgspec.structs.replace(message, message=f"Rank {rank}: {message.message}"), tail
                )
                for other, member in enumerate(self.members):
                    if other != rank:
                        member.kill()
        elif rank == 0 or isinstance(message, Broken):
            if isinstance(message, Result):
                self._answered = message.sequence
            self.on_message(message, tail)
        elif isinstance(message, Result) and message.answers and self.ranks.broadcast:
            asyncio.get_running_loop().call_later(FAILED_GRACE, self._give_up, rank, message.sequence)

    def _give_up(self, rank: int, sequence: int) -> None:
        """Ends the worker if rank 0 is still computing a batch that failed at another rank."""
        if self._answered < sequence and not self._killed:
            _log.error("Rank %d failed, and rank 0 did not finish the batch within %g s", rank, FAILED_GRACE)
            self.members[rank].kill()

    def lose(self, rank: int, reason: str | None) -> None:
        """The connection to one rank was lost."""
        if self._lost or (rank > 0 and self._stopping):
            return
        self._lost = True
        self.on_lost(None if reason is None else f"rank {rank}: {reason}")


async def launch_ranks(spec: WorkerSpec, label: str, on_message: OnMessage, on_lost: OnLost) -> Process:
    """Starts a worker that spans devices or processes, whose spec has ``ranks``, without forking.

    Raises OSError if a process cannot be started, or no port is free.
    """
    ranks = spec.ranks
    assert ranks is not None  # noqa: S101 - others are launched otherwise
    if not ranks.processes:
        return await launch(lone_spec(spec, ranks), label, on_message, on_lost)
    port = ranks.ports.next()
    group = RankGroup(ranks, on_message, on_lost)
    try:
        count = ranks.processes
        for rank in range(count):
            member = group.member_spec(
                spec, rank=rank, local=(rank, count), machine=(0, 1), meeting=("127.0.0.1", port)
            )
            receive, lose = partial(group.receive, rank), partial(group.lose, rank)
            group.members.append(await launch(member, f"{label}-rank{rank}", receive, lose))
            if group.failed_rank is not None:
                break
    except BaseException:
        group.kill()
        await asyncio.gather(*(member.wait() for member in group.members))
        raise
    return group
