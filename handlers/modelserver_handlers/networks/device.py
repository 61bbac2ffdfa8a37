"""Where a model runs."""

from __future__ import annotations

import ctypes
import gc
import os

import torch


def choose_device(gpu_id: int | None) -> tuple[str, torch.device]:
    """``map_location`` and device for the GPU that the server assigned, if any (reference 14.1)."""
    if gpu_id is not None:
        if torch.cuda.is_available():
            return "cuda", torch.device("cuda", int(gpu_id))
        if os.environ.get("TS_IPEX_GPU_ENABLE") == "true" and torch.xpu.is_available():
            return "xpu", torch.device("xpu", int(gpu_id))
        if torch.backends.mps.is_available():
            return "mps", torch.device("mps")
    return "cpu", torch.device("cpu")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_KEPT = 1 << 29  # bytes of free memory at the heap's end
_OWN_MAPPING = 1 << 25  # bytes from which allocations are mapped separately; glibc's maximum
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> None:
    """Reuse the memory of one batch for the next.

    glibc would return it to the system after each layer and get it anew, zeroed page by page: a fifth of the
    time of a ResNet. Does nothing if glibc's own variables are set, or with another library.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not any(name in os.environ for name in _USER_SETTINGS):
        set_option(_TRIM_THRESHOLD, _KEPT)
        set_option(_MMAP_THRESHOLD, _OWN_MAPPING)


def give_back_memory() -> None:
    """Return free memory to the system, as far as the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
