import importlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelserver_handlers.metrics import system
from modelserver_handlers.metrics.system import check_process_mem_usage, get_cpu_usage


@pytest.mark.usefixtures("ts_names")
def test_the_machine_is_measured_by_the_old_module(caplog):
    module = importlib.import_module("ts.metrics.system_metrics")
    caplog.set_level("INFO")
    module.collect_all(module, 0)

    names = {line.partition(".")[0] for line in caplog.messages if line}
    module.system_metrics.clear()
    assert names == {
        "CPUUtilization",
        "MemoryUsed",
        "MemoryAvailable",
        "MemoryUtilization",
        "DiskUsage",
        "DiskUtilization",
        "DiskAvailable",
    }


class Driver:
    """NVML: GPU 0 is lost, GPU 1 does not measure its utilisation."""

    class NVMLError(Exception):
        """Stands in for NVML's class."""

    ended = 0

    def nvmlInit(self):  # noqa: N802
        """Stands in for NVML's function."""

    def nvmlShutdown(self):  # noqa: N802
        self.ended += 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index == 0:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=handle << 30, total=4 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if handle == 1:
            raise self.NVMLError
        return SimpleNamespace(gpu=7)


def test_gpus_are_measured_as_far_as_they_can_be(monkeypatch):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(system, "system_metrics", [])
    system.gpu_utilization(8)

    assert [(each.name, each.value) for each in system.system_metrics] == [
        ("GPUMemoryUtilization", 25.0),
        ("GPUMemoryUsed", 1024),
        ("GPUMemoryUtilization", 50.0),
        ("GPUMemoryUsed", 2048),
        ("GPUUtilization", 7),
    ]
    assert driver.ended == 1


def test_memory_of_processes_is_logged(caplog):
    caplog.set_level(logging.INFO)
    own = str(Path("/proc/self").resolve().name)
    check_process_mem_usage([f"{own}\n", "999999999"])

    (record,) = caplog.records
    pid, _, size = record.getMessage().partition(":")
    assert (pid, int(size) > 1_000_000) == (own, True)
    assert get_cpu_usage(own) >= 0
    assert get_cpu_usage(999999999) == 0
