"""Memory and processor time of processes."""

from __future__ import annotations

from modelserver_handlers.metrics.process import check_process_mem_usage, get_cpu_usage

__all__ = ["check_process_mem_usage", "get_cpu_usage"]
