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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from modelserver.engine.pools.process import launch
from modelserver.engine.pools.spec import Node, Process, Ranks, Receiver, WorkerSpec, lone_spec
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


@dataclass(slots=True, eq=False)
class RankGroup:
    """The processes of one worker, with the interface of a single process.

    ``failed_rank`` could not load, or has ended first.
    ``recalls`` is False: the ranks might not agree on which batches to return.
    """

    ranks: Ranks
    receiver: Receiver
    members: list[Process] = field(default_factory=list)
    failed_rank: int | None = None
    recalls: bool = False
    _loaded: dict[int, Loaded] = field(default_factory=dict)
    _answered: int = -1
    _stopping: bool = False
    _killed: bool = False
    _lost: bool = False

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

    def receivers(self) -> list[Receiver]:
        """Returns what receives the messages of each rank."""
        ranks = range(self.ranks.processes)
        return [Receiver(partial(self._receive, rank), partial(self._lose, rank)) for rank in ranks]

    def _receive(self, rank: int, message: ToServer, tail: memoryview) -> None:
        """Receives a message of one rank."""
        if isinstance(message, Loaded):
            self._loaded[rank] = message
            if len(self._loaded) == self.ranks.processes:
                slowest = max(each.seconds for each in self._loaded.values())
                self.receiver.on_message(
                    msgspec.structs.replace(self._loaded[0], seconds=slowest), memoryview(b"")
                )
        elif isinstance(message, LoadFailed):
            if self.failed_rank is None:
                self.failed_rank = rank
                self.receiver.on_message(
                    msgspec.structs.replace(message, message=f"Rank {rank}: {message.message}"), tail
                )
                for other, member in enumerate(self.members):
                    if other != rank:
                        member.kill()
        elif rank == 0 or isinstance(message, Broken):
            if isinstance(message, Result):
                self._answered = message.sequence
            self.receiver.on_message(message, tail)
        elif isinstance(message, Result) and message.answers and self.ranks.broadcast:
            asyncio.get_running_loop().call_later(FAILED_GRACE, self._give_up, rank, message.sequence)

    def _give_up(self, rank: int, sequence: int) -> None:
        """Ends the worker if rank 0 is still computing a batch that failed at another rank."""
        if self._answered < sequence and not self._killed:
            _log.error("Rank %d failed, and rank 0 did not finish the batch within %g s", rank, FAILED_GRACE)
            self.members[rank].kill()

    def _lose(self, rank: int, reason: str | None) -> None:
        """The connection to one rank was lost."""
        if self._lost or (rank > 0 and self._stopping):
            return
        self._lost = True
        self.receiver.on_lost(None if reason is None else f"rank {rank}: {reason}")


async def launch_worker(spec: WorkerSpec, label: str, receiver: Receiver) -> Process:
    """Starts a worker, on other machines if its spec has a launcher.

    One of several processes or of a group of devices is not forked. Raises OSError if a process cannot be
    started, or no port is free, StartFailed if the model is why.
    """
    ranks, launcher = spec.ranks, spec.launcher
    if ranks is not None and ranks.processes:
        group = RankGroup(ranks, receiver)
        if launcher is None:
            await _launch_ranks(group, spec, label)
        else:
            group.members += await launcher(spec, label, group.receivers())
        return group
    if launcher is None:
        return await launch(spec if ranks is None else lone_spec(spec, ranks), label, receiver)
    (process,) = await launcher(spec, label, [receiver])
    return process


async def _launch_ranks(group: RankGroup, spec: WorkerSpec, label: str) -> None:
    meeting, count = ("127.0.0.1", group.ranks.ports.next()), group.ranks.processes
    try:
        for rank, own in enumerate(group.receivers()):
            member = group.ranks.member_spec(
                spec, rank=rank, local=(rank, count), machine=(0, 1), meeting=meeting
            )
            group.members.append(await launch(member, f"{label}-rank{rank}", own))
            if group.failed_rank is not None:
                break
    except BaseException:
        group.kill()
        await asyncio.gather(*(member.wait() for member in group.members))
        raise
