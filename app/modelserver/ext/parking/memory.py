"""The processes and GPUs of a pool, and the memory that processes would free if they ended."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable

import psutil

from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.system import family_of, worker_memory


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


def footprint(pids: Iterable[int]) -> tuple[list[int], int]:
    """These processes with all their descendants, and the bytes that would be free without them.

    Those are the bytes that they share with no other, as workers are forked and share most of what their
    libraries have; resident memory where that is not known. Reads /proc; for another thread.
    """
    workers = list(pids)
    family = family_of(workers)
    has_children = len(family) > len(workers)
    return family, sum(_own(pid, has_family=has_children) for pid in family)


def _own(pid: int, *, has_family: bool) -> int:
    sizes = _mapped(pid)
    own = sum(size for name, size in sizes.items() if name.startswith("Private_"))
    if has_family and sizes:
        # Forked children share what it had. What its own parent has counts there, or is shared with others.
        shared = sizes.get("Anonymous:", 0) - sizes.get("Private_Dirty:", 0) - _inherited(pid)
        own += max(0, shared)
    return own or worker_memory(pid)


def _inherited(pid: int) -> int:
    """The most bytes that it may have of the process from which it was forked; the server forks none."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid).ppid()
        return 0 if parent == os.getpid() else _mapped(parent).get("Anonymous:", 0)
    return 0


def _mapped(pid: int) -> dict[str, int]:
    """Bytes by kind; empty if they cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            next(lines, "")
            return {name: int(size) << 10 for name, size, _ in map(str.split, lines)}
    except (OSError, ValueError):
        return {}
