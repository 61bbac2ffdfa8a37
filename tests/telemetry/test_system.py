from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from modelserver.telemetry import system


class FakeNvml:
    """NVML with three GPUs; a handle is the GPU's index."""

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self) -> None:
        self.broken = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid != "MIG-7":
            raise self.NVMLError
        return 7

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}{handle}-x"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if self.broken:
            raise self.NVMLError
        return SimpleNamespace(used=(handle + 1) << 30, free=(3 - handle) << 30, total=4 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=1 << 30), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=10 * handle, memory=5)


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setattr(system, "_nvml", lambda: fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def no_nvml(monkeypatch):
    monkeypatch.setattr(system, "_nvml", lambda: None)


@pytest.mark.usefixtures("no_nvml")
def test_reading_of_this_host():
    """A reading has shares within 0..100 and sizes above 0."""
    reading = system.SystemMonitor().read()

    assert 0 <= reading.cpu_percent <= 100
    assert 0 < reading.memory_percent <= 100
    assert 0 <= reading.disk_percent <= 100
    assert reading.memory_used_mb > 0
    assert reading.memory_available_mb > 0
    assert reading.disk_used_gb > 0
    assert reading.gpus == ()


def test_cpu_use_is_measured_between_readings(monkeypatch):
    """CPU use is the busy share of the time since the reading before; no time passed is 0."""
    seconds = iter([(10.0, 100.0), (15.0, 110.0), (15.0, 110.0)])
    monkeypatch.setattr(system, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(system, "_nvml", lambda: None)
    monitor = system.SystemMonitor()

    assert monitor.read().cpu_percent == 50.0
    assert monitor.read().cpu_percent == 0.0


def test_worker_memory():
    """A living process has resident bytes, one that is gone has 0."""
    assert system.worker_memory(os.getpid()) > 1_000_000
    assert system.worker_memory(-1) == 0
    assert system.worker_memory(2**22 + 12345) == 0


def test_worker_memory_without_descriptors(monkeypatch):
    """Where nothing can be opened any more it is 0."""

    def process(pid):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(system.psutil, "Process", process)
    assert system.worker_memory(os.getpid()) == 0


@pytest.mark.usefixtures("no_nvml")
def test_without_a_driver_there_are_no_gpus():
    """Where NVML is absent there are no GPUs, and a GPU worker's use cannot be read."""
    assert system.gpu_count() == 0
    assert system.read_gpus() == ()
    assert system.gpu_usage(None) == "N/A"
    assert system.gpu_usage(0) == "failed to obtained gpu usage"


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 3),
        ("", 0),
        ("0", 1),
        ("2,0", 2),
        ("0,9,1", 1),
        ("-1", 0),
        ("1,1", 0),
        ("GPU-11,GPU-00-x", 2),
        ("GPU-nope", 0),
        ("MIG-7", 1),
        ("MIG-8", 0),
        ("none", 0),
        (" 1 , 2 ", 2),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_visible_devices(monkeypatch, visible, count):
    """CUDA_VISIBLE_DEVICES is read as CUDA does: up to the first device that does not exist."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert system.gpu_count() == count


@pytest.mark.usefixtures("nvml")
def test_number_of_gpu_is_an_upper_bound():
    """`number_of_gpu` lowers the count, never raises it."""
    assert [system.gpu_count(limit) for limit in (0, 2, 8, -1)] == [0, 2, 3, 0]
    assert len(system.read_gpus(2)) == 2


@pytest.mark.usefixtures("nvml")
def test_gpu_ids_are_positions_among_the_visible(monkeypatch):
    """GPU 0 of a worker is the first visible device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    first, second = system.read_gpus()

    assert (first.gpu_id, first.memory_used_mb, first.memory_percent) == (0, 3072, 75.0)
    assert (second.gpu_id, second.utilization_percent) == (1, 10)
    assert system.gpu_usage(0) == (
        "gpuId::0 utilization.gpu::20 % utilization.memory::5 % memory.used::3072 MiB"
    )
    assert system.gpu_usage(2) == "failed to obtained gpu usage"
    # A worker may see others than this process.
    assert "memory.used::3072 MiB" in system.gpu_usage(1, "1,2")


def test_a_gpu_that_cannot_be_read(nvml):
    """A GPU that fails to answer is left out of readings and named so in describe."""
    nvml.broken = True

    assert system.read_gpus() == ()
    assert system.gpu_usage(0) == "failed to obtained gpu usage"


def test_driver_listing_fails(nvml, monkeypatch, caplog):
    """When the GPUs cannot be listed there are none, and the log says so."""

    def fail() -> int:
        raise FakeNvml.NVMLError("lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", fail)

    assert system.gpu_count() == 0
    assert "lost" in caplog.text


def test_missing_library(monkeypatch):
    """Without the NVML package everything works as without a GPU."""
    system._nvml.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    try:
        assert system.gpu_count() == 0
    finally:
        system._nvml.cache_clear()


def test_gpu_memory(nvml):
    """Of a GPU it is told what is free, what is used, and by whom where that is known."""
    assert system.gpu_memory(1) == (2 << 30, 2 << 30, {7: 1 << 30})
    assert system.gpu_memory(3) is None
    assert system.gpu_memory(-1) is None
    nvml.broken = True

    assert system.gpu_memory(1) is None


@pytest.mark.usefixtures("no_nvml")
def test_gpu_memory_without_gpus():
    """Where there is no GPU there is nothing to tell."""
    assert system.gpu_memory(0) is None
