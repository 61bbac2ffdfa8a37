"""The first batches, computed before anyone waits for them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

LONG = 2.0  # seconds after which no further size is begun


def sizes(batch_size: int) -> list[int]:
    """The batch sizes to begin with: a full batch, a lone row, and the powers of two between, falling."""
    between = [1 << exponent for exponent in range(1, batch_size.bit_length()) if 1 << exponent < batch_size]
    return list(dict.fromkeys([batch_size, 1, *reversed(between)]))


def warm_up(run: Callable[[torch.Tensor], Any], shape: Sequence[int], batch_size: int) -> bool:
    """Run seeded batches of rows of ``shape``, full ones first; False, and a line in the log, if one fails.

    Libraries prepare themselves for each size; sizes are left out once that has taken long.
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
        logger.warning(
            "Warming up with rows of %s failed: %s: %s",
            tuple(shape),
            type(error).__name__,
            _first_line(error),
        )
        return False
    logger.info("Warmed up with %d batch sizes in %.1f s", done, time.perf_counter() - started)
    return True


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
