"""The machine as metrics of the old kind."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.usefixtures("ts_names")
def test_the_machine_is_measured_by_the_old_module(caplog: pytest.LogCaptureFixture) -> None:
    """``collect_all`` calls what a module has to measure and logs a line for each value."""
    module = importlib.import_module("ts.metrics.system_metrics")
    caplog.set_level("INFO")
    module.collect_all(module, 0)

    names = {line.partition(".")[0] for line in caplog.messages if line}
    module.system_metrics.clear()
    assert names == {
        *("CPUUtilization", "MemoryUsed", "MemoryAvailable", "MemoryUtilization"),
        *("DiskUsage", "DiskUtilization", "DiskAvailable"),
    }
