"""Memory of processes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver_handlers.metrics.process import check_process_mem_usage, get_cpu_usage

if TYPE_CHECKING:
    import pytest


def test_memory_of_processes(caplog: pytest.LogCaptureFixture) -> None:
    """Known processes are logged with their bytes, ended ones are passed over."""
    caplog.set_level(logging.INFO)
    own = str(Path("/proc/self").resolve().name)
    check_process_mem_usage([f"{own}\n", "999999999"])

    (record,) = caplog.records
    pid, _, size = record.getMessage().partition(":")
    assert (pid, int(size) > 1_000_000) == (own, True)
    assert get_cpu_usage(own) >= 0
    assert get_cpu_usage(999999999) == 0
