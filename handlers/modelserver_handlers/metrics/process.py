"""Memory and processor time of processes (reference 13, ``ts.metrics.process_memory_metric``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)


def check_process_mem_usage(stdin: Iterable[Any]) -> None:
    """Log ``<pid>:<resident bytes>`` of each process id in ``stdin``; ended processes are skipped."""
    for line in stdin:
        for pid in str(line).replace(",", " ").split():
            try:
                memory = psutil.Process(int(pid)).memory_info().rss
            except psutil.NoSuchProcess:
                continue
            logger.info("%s:%d", pid, memory)


def get_cpu_usage(pid: Any) -> float:
    """Percent of one core that the process used since the last call; 0 if it has ended."""
    try:
        return psutil.Process(int(pid)).cpu_percent()
    except psutil.NoSuchProcess:
        return 0.0
