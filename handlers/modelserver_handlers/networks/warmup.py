"""Warming up: the first batches are computed before the worker is ready."""

from __future__ import annotations

import gc
import logging
import re
import time
from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.networks.cuda_graphs import batch_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

LONG = 2.0  # seconds
_PROCESSOR = torch.device("cpu")
# Errors of CUDA and its libraries, and of onnxruntime's memory; those for which memory is too small.
_CUDA_ERROR = re.compile(
    r"(CUDA|cuDNN|NCCL) (driver |runtime )?error|CUDA (failure|out of memory)|\[CUDA\]"
    r"|(CUDNN|CUBLAS)_STATUS|BFCArena"
)
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED|BFCArena")


def sizes(batch_size: int) -> list[int]:
    """The batch sizes to start with: a full batch, one row, and the powers of two between, descending."""
    return list(dict.fromkeys([batch_size, 1, *reversed(batch_sizes(batch_size))]))


def warm_up(
    run: Callable[[torch.Tensor], Any],
    shape: Sequence[int],
    batch_size: int,
    device: torch.device = _PROCESSOR,
    warn: Callable[[str], object] = logger.warning,
    *,
    long: float = LONG,
) -> bool:
    """Run seeded batches of rows of ``shape``, full ones first; False, and a log line, if one fails.

    Libraries initialise themselves for each size; sizes are skipped after ``long`` seconds. If full batches
    do not fit into the memory of ``device``, a GPU, ``warn`` gets a line with the largest size that does.

    Raises ModelLoadError if torch or the network has no code for the GPU, and RuntimeError for other errors
    of CUDA and if a single row does not fit.
    """
    started, done, largest, shortage = time.perf_counter(), 0, 0, ""
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(batch_size, *shape, generator=generator)
    for size in sizes(batch_size):
        if done >= 2 and time.perf_counter() - started > long:
            break
        failure = _failure(run, full[:size], device)
        if not failure:
            done, largest = done + 1, max(largest, size)
        elif device.type != "cuda" or not _CUDA_ERROR.search(failure):
            logger.warning("Warming up with rows of %s failed: %s", tuple(shape), failure)
            return False
        elif size == 1 or not _OUT_OF_MEMORY.search(failure):
            kind = ModelLoadError if "no kernel image" in failure else RuntimeError
            raise kind(f"Warming up with batches of {size} failed on the GPU: {failure}")
        else:
            shortage = failure
            _release_memory()
    if shortage:
        warn(f"Batches of {batch_size} do not fit into the GPU's memory, those of {largest} do: {shortage}")
    logger.info("Warmed up with %d batch sizes in %.1f s", done, time.perf_counter() - started)
    return True


def _failure(run: Callable[[torch.Tensor], Any], rows: torch.Tensor, device: torch.device) -> str:
    """Why the batch could not be computed to its end, or nothing.

    Only text, as the frames of an error keep the batch's memory.
    """
    try:
        run(rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # user code may raise anything
        logger.debug("Warming up with %d rows failed", len(rows), exc_info=True)
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def _release_memory() -> None:
    """Return the memory of a failed batch to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
