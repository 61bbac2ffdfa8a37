"""The memory that processes would free if they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.engine.telemetry.system import worker_memory

if TYPE_CHECKING:
    from collections.abc import Iterable


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
