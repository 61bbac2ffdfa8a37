"""Where a model runs."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from modelserver_handlers.current_device import enter_by
from modelserver_handlers.errors import GpuNotUsable, first_line

_DRIVER = Path("/proc/driver/nvidia/version")


def choose_device(
    gpu_id: int | None, warn: Callable[[str], object] | None = None
) -> tuple[str, torch.device]:
    """``map_location`` and device for the GPU that the server assigned, if any (reference 14.1).

    The GPU becomes the process's current device. Raises GpuNotUsable if it cannot be used; with a torch for
    CPUs only, ``warn`` gets a message, and the device is the CPU.
    """
    if gpu_id is None:
        return "cpu", torch.device("cpu")
    gpu_id = int(gpu_id)
    if torch.cuda.is_available():
        return "cuda", _enter_gpu(gpu_id)
    if os.environ.get("TS_IPEX_GPU_ENABLE") == "true" and torch.xpu.is_available():
        return "xpu", torch.device("xpu", gpu_id)
    if torch.backends.mps.is_available():
        return "mps", torch.device("mps")
    if torch.version.cuda or torch.version.hip:
        raise _not_usable(gpu_id, _why_not_available())
    if warn is not None:
        warn(
            f"GPU {gpu_id} was assigned, but torch {torch.__version__} is built for CPUs only: "
            "the model runs on the CPU"
        )
    return "cpu", torch.device("cpu")


def _enter_gpu(gpu_id: int) -> torch.device:
    count = torch.cuda.device_count()
    if gpu_id >= count:
        raise _not_usable(gpu_id, f"CUDA shows this process only {count}, numbered from 0")
    try:
        enter_by(partial(torch.cuda.set_device, gpu_id))
    except RuntimeError as error:
        raise _not_usable(gpu_id, first_line(error)) from error
    return torch.device("cuda", gpu_id)


def _why_not_available() -> str:
    """torch's reason, which names an old driver and its version, for example."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - torch raises several kinds
        return first_line(error)
    return "torch.cuda.is_available() is false"


def _not_usable(gpu_id: int, why: str) -> GpuNotUsable:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    toolkit = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    variable = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
    return GpuNotUsable(
        f"GPU {gpu_id} was assigned and cannot be used: {why.rstrip('.')} "
        f"(NVIDIA's driver: {_driver_version()}; torch {torch.__version__} is built for {toolkit}{variable})"
    )


def _driver_version() -> str:
    """That of the kernel's module."""
    try:
        version = re.search(r"\d+\.\d+(\.\d+)*", _DRIVER.read_text("utf-8"))
    except OSError:
        return "not loaded"
    return version[0] if version else "unknown"


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_FREE_MEMORY = 1 << 29  # bytes of free memory at the heap's end
_OWN_MAPPING = 1 << 25  # bytes from which allocations are mapped separately; glibc's maximum
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> None:
    """Reuse the memory of one batch for the next.

    glibc would return it to the system after each layer and get it anew, zeroed page by page: a fifth of the
    time of a ResNet. Does nothing if glibc's own variables are set, or with another library.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not any(name in os.environ for name in _USER_SETTINGS):
        set_option(_TRIM_THRESHOLD, _FREE_MEMORY)
        set_option(_MMAP_THRESHOLD, _OWN_MAPPING)


def give_back_memory() -> None:
    """Return free memory to the system, as far as the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
