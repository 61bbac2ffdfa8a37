"""NVIDIA's library with two GPUs, as recorded: the second cannot be read. Stands in for pynvml."""

from types import SimpleNamespace

# Processes on the first GPU, and their bytes.
PROCESSES: dict[int, int] = {}


class NVMLError(Exception):
    """Any error of the library."""


def nvmlInit() -> None:  # noqa: N802
    pass


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    return index


def nvmlDeviceGetUUID(handle: int) -> str:  # noqa: N802
    return f"GPU-{handle}"


def nvmlDeviceGetMigMode(handle: int) -> None:  # noqa: N802
    raise NVMLError("Not Supported")


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    if handle:
        raise NVMLError("GPU is lost")
    return SimpleNamespace(used=3 << 30, free=5 << 30, total=8 << 30)


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:  # noqa: N802
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in PROCESSES.items()]


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(gpu=7, memory=5)
