"""Warming up: the first batches are computed before the worker is ready."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks.cuda_graphs import batch_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

LONG = 2.0  # seconds after which no further size is started


def sizes(batch_size: int) -> list[int]:
    """The batch sizes to start with: a full batch, one row, and the powers of two between, descending."""
    return list(dict.fromkeys([batch_size, 1, *reversed(batch_sizes(batch_size))]))


def warm_up(run: Callable[[torch.Tensor], Any], shape: Sequence[int], batch_size: int) -> bool:
    """Run seeded batches of rows of ``shape``, full ones first; False, and a log line, if one fails.

    Libraries initialise themselves for each size; sizes are skipped once that has taken long.
    """
    started, done = time.perf_counter(), 0
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(batch_size, *shape, generator=generator)
    try:
        for size in sizes(batch_size):
            if done >= 2 and time.perf_counter() - started > LONG:
                break
            run(full[:size])
            done += 1
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        what = f"{type(error).__name__}: {first_line(error)}"
        logger.warning("Warming up with rows of %s failed: %s", tuple(shape), what)
        return False
    logger.info("Warmed up with %d batch sizes in %.1f s", done, time.perf_counter() - started)
    return True
