"""CUDA graphs: the network recorded once for a few batch sizes, and replayed without Python.

A batch is padded to the next larger size; the results of the padding are dropped.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Inference = Callable[[torch.Tensor], Any]

logger = logging.getLogger(__name__)

WARMUPS = 3  # runs before recording: libraries choose algorithms and allocate memory in these


@dataclass(frozen=True, slots=True)
class Recording:
    """``replay`` computes ``answers`` anew from ``inputs``."""

    inputs: torch.Tensor
    answers: torch.Tensor
    replay: Callable[[], object]


class BatchGraphs:
    """Recordings by batch size, for inputs of one shape."""

    def __init__(self, recordings: Mapping[int, Recording]) -> None:
        self._recordings = dict(sorted(recordings.items()))
        self._sizes = list(self._recordings)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The recorded batch sizes, ascending."""
        return tuple(self._sizes)

    def fits(self, batch: Any) -> bool:
        """Whether the batch has the recorded shape and type, and is not larger than the largest."""
        largest = self._recordings[self._sizes[-1]].inputs
        return (
            isinstance(batch, torch.Tensor)
            and (batch.shape[1:], batch.dtype, batch.device)
            == (largest.shape[1:], largest.dtype, largest.device)
            and 0 < len(batch) <= len(largest)
            and not batch.requires_grad
        )

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """The network's answers to a batch that fits."""
        size = self._sizes[bisect_left(self._sizes, len(batch))]
        recording = self._recordings[size]
        recording.inputs[: len(batch)].copy_(batch, non_blocking=True)
        recording.replay()
        return recording.answers[: len(batch)].clone()


def batch_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest: at most half of a recording is padding."""
    return (*(1 << power for power in range(largest.bit_length()) if 1 << power < largest), largest)


def record_graphs(
    inference: Inference,
    shape: Sequence[int],
    sizes: Sequence[int],
    device: torch.device,
    order: torch.memory_format = torch.contiguous_format,
) -> BatchGraphs | None:
    """Record ``inference`` for batches of inputs of ``shape``; None, with a warning, if that fails.

    ``order`` is the batches' memory format. Algorithms of cuDNN are measured, which pays for sizes that do
    not change.
    """
    measured = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        # The largest first: the smaller ones reuse its memory.
        pool = torch.cuda.graph_pool_handle()
        recordings = {
            size: _record(
                inference, torch.zeros(size, *shape, device=device).contiguous(memory_format=order), pool
            )
            for size in sorted(set(sizes), reverse=True)
        }
    except (RuntimeError, TypeError) as error:
        logger.warning("CUDA graphs could not be recorded, the network runs without: %s", error)
        return None
    finally:
        torch.backends.cudnn.benchmark = measured
    logger.info("Recorded CUDA graphs for batches of %s", ", ".join(map(str, sorted(recordings))))
    return BatchGraphs(recordings)


def _record(inference: Inference, inputs: torch.Tensor, pool: Any) -> Recording:
    device = inputs.device
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(side):
        for _ in range(WARMUPS):
            inference(inputs)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        answers = inference(inputs)
    if not isinstance(answers, torch.Tensor) or len(answers) != len(inputs):
        raise TypeError("the network does not return one row per input")
    return Recording(inputs, answers, graph.replay)
