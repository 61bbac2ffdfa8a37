"""What errors say about the worker's GPU, and what is done about them before the next call.

An error of a kernel is *sticky*: from then on every use of the GPU by this process fails, for any request.
torch is never imported here: without it, or before it has used a GPU, no error is one of a GPU.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from modelserver_handlers.errors import text_of

_OF_A_GPU = re.compile(
    r"(CUDA|HIP) (driver |runtime )?error|CUDA failure|\[CUDA\]|cuDNN error|NCCL error|ncclUnhandledCudaError"
    r"|(CUDNN|CUBLAS|CUSOLVER|CUSPARSE)_STATUS_|CUFFT_",
    re.IGNORECASE,
)
_OF_ITS_MEMORY = re.compile(
    r"(CUDA|HIP) (driver |runtime )?(error: )?out of memory|(CUDNN|CUBLAS|CUSOLVER)_STATUS_ALLOC_FAILED"
)


def is_of_memory(error: BaseException) -> bool:
    """Whether the error itself says that the GPU's memory was exhausted."""
    return type(error).__name__ == "OutOfMemoryError" or bool(_OF_ITS_MEMORY.search(text_of(error)))


def ran_out(error: BaseException) -> bool:
    """Whether the GPU's memory was exhausted, by this error or one that led to it."""
    return any(is_of_memory(each) for each in _chain(error))


def is_broken_by(error: BaseException) -> bool:
    """Whether this process cannot use its GPU any more, after this error.

    Tries that only if the error is one of a GPU, and not of its memory; then waits for the GPU's work.
    """
    torch = _torch_on_gpu()
    if torch is None or not any(_is_of_a_gpu(each, torch) for each in _chain(error)):
        return False
    numbers = range(torch.cuda.device_count())
    try:
        for number in [n for n in numbers if torch.cuda.memory_reserved(n)] or [torch.cuda.current_device()]:
            torch.cuda.synchronize(number)
            torch.ones(1, device=f"cuda:{number}").add_(1).item()
    except Exception as raised:  # noqa: BLE001 - whatever the driver says
        return not ran_out(raised)
    return False


def release(error: BaseException) -> None:
    """Frees the GPU's memory that a failed call holds: what the frames of its error refer to.

    If that memory was exhausted, torch returns what it has cached as well, which may be fragments.
    """
    torch = _torch_on_gpu()
    if torch is None:
        return
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
    if ran_out(error):
        torch.cuda.empty_cache()


def free_memory() -> str:
    """How much of the current GPU's memory is free, in words; empty without a GPU in use."""
    torch = _torch_on_gpu()
    if torch is None:
        return ""
    free, total = torch.cuda.mem_get_info()
    return f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB are free"


def _torch_on_gpu() -> Any:
    """The module, if it has used a GPU."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _is_of_a_gpu(error: BaseException, torch: Any) -> bool:
    kind = getattr(torch, "AcceleratorError", ())  # since torch 2.8
    return (isinstance(error, kind) or bool(_OF_A_GPU.search(text_of(error)))) and not is_of_memory(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_out_of_memory(error: Exception) -> bool:
    """Whether host or device memory is exhausted; for devices, messages contain CUDA (reference 6.5)."""
    return isinstance(error, MemoryError) or "CUDA" in text_of(error) or is_of_memory(error)
