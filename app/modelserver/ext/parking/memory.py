"""The processes and GPUs of a pool, and the memory that processes would free if they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.system import worker_memory


def pids_of(pool: Pool) -> list[int]:
    """The processes of its workers on this machine."""
    processes = [worker.process for worker in pool.workers]
    return [pid for process in processes if process is not None for pid in process.pids if pid > 0]


def is_leaving(pool: Pool) -> bool:
    """Whether workers of it end that have not been replaced."""
    return bool(pool.crew.leaving) and not pool.workers


def gpus_of(pool: Pool, *, more: bool = False) -> tuple[int, ...]:
    """The GPUs of its workers, also of those that end; without any, or of ``more``, what they would get."""
    return tuple(sorted(_by_gpu(pool, () if more else (*pool.workers, *pool.crew.leaving))))


def workers_by_gpu(pool: Pool) -> Counter[int]:
    """How many of its workers each of its GPUs has; without workers, as those that a load starts would be."""
    return _by_gpu(pool, pool.workers)


def _by_gpu(pool: Pool, workers: Iterable[Worker]) -> Counter[int]:
    crew = pool.crew
    groups = {} if crew.spec.ranks is None else crew.spec.ranks.groups
    coming = range(max(1, pool.min_workers))
    firsts = [worker.gpu for worker in workers] or [crew.devices.peek(after) for after in coming]
    return Counter(gpu for each in firsts if each is not None for gpu in groups.get(each, (each,)))


def own_memory(pids: Iterable[int]) -> int:
    """Bytes that these processes share with no other, or their resident memory where that is not known.

    Workers are forked, and share most of what their libraries have. Reads /proc; for another thread.
    """
    return sum(_private(pid) or worker_memory(pid) for pid in pids)


def _private(pid: int) -> int:
    size = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("Private_"):
                    size += int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 0
    return size
