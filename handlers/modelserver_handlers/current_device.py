"""The GPU of this process as the current device of its threads.

For CUDA each thread has a current device, at first device 0: what does not name a device happens there, in
a context of hundreds of megabytes. Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable

_enter: Callable[[], object] | None = None


def enter_by(enter: Callable[[], object]) -> None:
    """Set the current device of the calling thread by ``enter``, and that of new threads from now on."""
    global _enter  # noqa: PLW0603 - a process has one GPU
    enter()
    _enter = enter


def enter_thread() -> None:
    """Set the current device of a new thread, before it uses CUDA; does nothing without a GPU."""
    if _enter is not None:
        _enter()
