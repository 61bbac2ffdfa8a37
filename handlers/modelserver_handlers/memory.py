"""How the C library deals with memory: what loading used is given back, what batches use is kept."""

from __future__ import annotations

import ctypes
import gc
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_KEPT = 1 << 29  # bytes of free memory at the heap's end
_OWN_MAPPING = 1 << 25  # bytes from which an allocation is a mapping of its own; the most that glibc takes
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> None:
    """Reuse the memory of one batch for the next.

    glibc would return it to the system after each layer and get it anew, zeroed page by page: a fifth of the
    time of a ResNet. Who has set glibc's own variables is left alone; other libraries are not touched.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not any(name in os.environ for name in _USER_SETTINGS):
        set_option(_TRIM_THRESHOLD, _KEPT)
        set_option(_MMAP_THRESHOLD, _OWN_MAPPING)


def give_back_memory() -> None:
    """Return what is free to the system, as far as the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
