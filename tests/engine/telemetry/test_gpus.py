import asyncio
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from modelserver.engine.telemetry.gpus import RETRY, Driver, Gpus
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.system import SystemMonitor

GIB = 1 << 30
UNREADABLE = "failed to obtained gpu usage"
NOT_SUPPORTED, NO_PERMISSION, NO_SUCH_GPU, NO_LIBRARY, LOST = 3, 4, 6, 12, 15


class NvmlError(Exception):
    """Stands in for NVML's class: ``value`` is its number."""

    def __init__(self, value, text=""):
        super().__init__(text)
        self.value = value


class FakeNvml:
    """NVML with three GPUs; a handle is the GPU's index.

    ``instances``: those of each divided GPU, by its number; handles above 99. ``lost``, ``forbidden``:
    numbers of GPUs without a handle. ``broken``: handles whose memory cannot be read.
    """

    NVMLError = NvmlError

    def __init__(self):
        self.failure = None
        self.started = 0
        self.instances = {}
        self.lost = set()
        self.forbidden = set()
        self.broken = set()
        self.answers = threading.Event()
        self.answers.set()

    def nvmlInit(self):  # noqa: N802
        self.started += 1
        if self.failure is not None:
            raise self.failure

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index in self.lost:
            raise NvmlError(LOST, "GPU is lost")
        if index in self.forbidden:
            raise NvmlError(NO_PERMISSION, "Insufficient Permissions")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        number = int(uuid.removeprefix("MIG-"))
        if number < 100:
            raise NvmlError(NO_SUCH_GPU)
        return number

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"MIG-{handle}" if handle > 99 else f"GPU-{handle}{handle}-x"

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle == 2:
            raise NvmlError(NOT_SUPPORTED)
        return [int(handle in self.instances)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):  # noqa: N802
        # The first place is not taken.
        instances = [None, *self.instances[handle]]
        if index >= len(instances) or instances[index] is None:
            raise NvmlError(NO_SUCH_GPU)
        return instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        self.answers.wait()
        if handle in self.broken:
            raise NvmlError(LOST, "GPU is lost")
        own = handle % 100
        return SimpleNamespace(used=(own + 1) * GIB, free=(3 - own) * GIB, total=4 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        if handle > 99:
            raise NvmlError(NOT_SUPPORTED)
        return [SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if handle > 99:
            raise NvmlError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=10 * handle, memory=5)


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield fake
    fake.answers.set()


@pytest.fixture
def gpus(nvml):
    """GPUs that were not read yet. No test waits in vain for a reading, however slow the machine is."""
    return Gpus(patience=3600)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [1, 2, 3]),
        ("", []),
        ("0", [1]),
        ("2,0", [3, 1]),
        ("0,9,1", [1]),
        ("-1", []),
        ("0,-1,1", [1]),
        ("1,1", []),
        ("1,GPU-11-x", []),
        ("GPU-11,GPU-00-x", [2, 1]),
        ("GPU-nope", []),
        ("MIG-101", [2]),
        ("MIG-101,MIG-102", [2]),
        ("MIG-8", []),
        ("none", []),
        (" 1 , 2 ", [2, 3]),
    ],
)
def test_visible_devices_are_read_as_cuda_does(gpus, monkeypatch, visible, seen):
    """Up to the first device that does not exist, none if one is named twice, one part of a divided GPU."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    # The memory identifies each GPU.
    assert [each and each.memory_used_mb / 1024 for each in gpus.read()] == seen
    assert gpus.count() == len(seen)


@pytest.mark.parametrize(
    ("instances", "visible", "seen"),
    [
        ({0: [101, 102]}, None, [2]),
        ({1: [102]}, None, [3]),
        ({0: []}, None, [2, 3]),
        ({0: [101, 102]}, "2", [3]),
        ({0: [101, 102]}, "2,0", [2]),
        ({0: [101, 102]}, "MIG-102", [3]),
        ({0: [101, 102]}, "GPU-00", [2]),
        ({0: []}, "0,1", []),
    ],
    ids=str,
)
def test_one_instance_of_a_divided_gpu_is_read(nvml, instances, visible, seen):
    """CUDA uses one instance, and no whole GPU beside it; a divided GPU without instances is none."""
    nvml.instances = instances
    gpus = Gpus(visible=visible, patience=3600)

    assert [each and each.memory_used_mb / 1024 for each in gpus.read()] == seen


def test_number_of_gpu_is_an_upper_bound(gpus):
    gpus.read()

    assert [gpus.count(limit) for limit in (0, 2, 8, -1)] == [0, 2, 3, 0]
    assert len(SystemMonitor(number_of_gpu=2, gpus=gpus).read().gpus) == 2
    assert SystemMonitor(number_of_gpu=0, gpus=gpus).read().gpus == ()


def test_usage_and_memory_are_of_the_visible_gpus(nvml):
    gpus = Gpus(visible="2,1", patience=3600)
    first, second = gpus.read()

    assert (first.gpu_id, first.memory_used_mb, first.memory_percent) == (0, 3072, 75.0)
    assert (second.gpu_id, second.utilization_percent) == (1, 10)
    assert gpus.usage(0) == "gpuId::0 utilization.gpu::20 % utilization.memory::5 % memory.used::3072 MiB"
    assert gpus.usage(2) == UNREADABLE
    assert gpus.usage(None) == gpus.usage(-1) == "N/A"

    assert gpus.memory(1) == (2 * GIB, 2 * GIB, {7: GIB})
    assert gpus.memory(2) is gpus.memory(-1) is None


def test_memory_is_read_without_utilisation(nvml):
    """An instance of a divided GPU measures no utilisation: its memory is shown all the same."""
    gpus = Gpus(visible="MIG-101", patience=3600)
    monitor, metrics = SystemMonitor(gpus=gpus), ServerMetrics()
    metrics.system(monitor.read())
    text = b"".join(metrics.pieces()).decode()

    assert gpus.memory(0) == (2 * GIB, 2 * GIB, {})
    assert gpus.usage(0) == (
        "gpuId::0 utilization.gpu::[N/A] utilization.memory::[N/A] memory.used::2048 MiB"
    )
    assert 'GPUMemoryUsed{Level="Host",DeviceId="0"' in text
    assert "GPUUtilization{" not in text


def test_a_lost_gpu_hides_no_other_and_keeps_its_place(nvml, gpus):
    nvml.lost, nvml.broken = {0}, {1}
    readings = gpus.read()

    assert [each and each.gpu_id for each in readings] == [None, None, 2]
    assert (gpus.count(), gpus.usage(0), gpus.usage(1)) == (3, UNREADABLE, UNREADABLE)
    assert [each.gpu_id for each in SystemMonitor(gpus=gpus).read().gpus] == [2]
    nvml.lost, nvml.forbidden = set(), {0}
    assert len(gpus.read()) == 2

    nvml.lost = {0}
    readings = Gpus(visible="0,2", patience=3600).read()

    assert [each and each.memory_used_mb for each in readings] == [None, 3072]


def test_why_there_is_no_gpu_is_named(nvml, monkeypatch):
    hidden = Gpus(visible="-1", patience=3600)
    hidden.read()

    assert hidden.driver.problem == "CUDA_VISIBLE_DEVICES=-1 names none of the 3 GPUs"
    assert not hidden.driver.is_broken

    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus(patience=3600)

    assert gpus.read() == ()
    assert (gpus.usage(None), gpus.usage(0)) == ("N/A", UNREADABLE)
    assert gpus.driver.problem == "the package nvidia-ml-py is not installed"
    assert gpus.driver.is_broken is False


@pytest.mark.parametrize(
    ("error", "is_broken", "problem"),
    [
        (NvmlError(NO_LIBRARY), False, "NVIDIA's driver is not installed"),
        (
            NvmlError(18, "Driver/library version mismatch"),
            True,
            "cannot be used: Driver/library version mis",
        ),
    ],
)
def test_a_driver_that_cannot_be_used_is_tried_again(nvml, error, is_broken, problem):
    """After some seconds, not at each reading: it may be loaded after the server has started."""
    now = [0.0]
    nvml.failure = error
    driver = Driver(clock=lambda: now[0])
    gpus = Gpus(driver, patience=3600)

    assert (gpus.read(), gpus.read()) == ((), ())
    assert (nvml.started, driver.is_broken) == (1, is_broken)
    assert problem in driver.problem
    nvml.failure = None
    now[0] = RETRY
    assert len(gpus.read()) == 3
    assert (nvml.started, driver.is_broken, driver.problem) == (2, False, "")
    now[0] = 10 * RETRY
    gpus.read()
    assert nvml.started == 2


def test_gpus_that_cannot_be_listed(nvml, monkeypatch, caplog):
    now = [0.0]
    gpus = Gpus(Driver(clock=lambda: now[0]), patience=3600)
    with monkeypatch.context() as broken:
        broken.setattr(nvml, "nvmlDeviceGetCount", Mock(side_effect=NvmlError(999, "Unknown Error")))
        assert (gpus.read(), gpus.read()) == ((), ())

    assert caplog.text.count("Unknown Error") == 1
    assert gpus.driver.is_broken
    now[0] = RETRY
    assert len(gpus.read()) == 3
    assert (nvml.started, gpus.driver.is_broken) == (2, False)


def test_an_error_keeps_the_last_readings(gpus, monkeypatch, caplog, nvml):
    before = gpus.read()
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        assert gpus.read() is before

    assert "can't start new thread" in caplog.text
    assert gpus.read() is not before

    before = gpus.read()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", Mock(side_effect=OSError("no descriptors left")))
    assert gpus.read() == before
    assert "no descriptors left" in caplog.text


async def test_a_driver_that_hangs_delays_nobody(nvml, caplog):
    gpus = Gpus(patience=0.0)
    assert await gpus.renew(3600)
    nvml.answers.clear()
    before, others = gpus.latest, threading.active_count()

    assert not await gpus.renew()
    assert not await gpus.renew()
    assert await asyncio.to_thread(gpus.read) == before
    assert "memory.used::1024 MiB" in gpus.usage(0)
    assert caplog.text.count("does not answer") == 1
    # One thread waits, not one for each reading.
    assert [thread.name for thread in threading.enumerate()].count("gpus") == 1, others
    nvml.broken = {0}
    nvml.answers.set()
    assert await gpus.renew(3600)
    assert gpus.usage(0) == UNREADABLE
