"""CUDA graphs: the network recorded once for a few batch sizes, and replayed without Python.

A batch is padded to the next larger size; the results of the padding are dropped.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.errors import LoadAgain, first_line

if TYPE_CHECKING:
    Inference = Callable[[torch.Tensor], Any]

logger = logging.getLogger(__name__)

WARMUPS = 3  # runs before recording
OLDEST = "2.2"  # torch with which graphs are recorded: the oldest that is supported
# Older ones count a recording that has failed as one that goes on, and reuse no batch's memory from then on.
FORGETS_FAILURES = "2.12"
WITHOUT_GRAPHS = "MODELSERVER_WITHOUT_CUDA_GRAPHS"  # the variable that says why a process records none
_NO_GRAPHS = "CUDA graphs could not be recorded, the network runs without: "


@dataclass(frozen=True, slots=True)
class GraphRecording:
    """``replay`` computes ``answers`` anew from ``inputs``."""

    inputs: torch.Tensor
    answers: torch.Tensor
    replay: Callable[[], object]


class BatchGraphs:
    """Recordings by batch size, for inputs of one shape."""

    def __init__(self, recordings: Mapping[int, GraphRecording]) -> None:
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


def record_graphs(  # noqa: PLR0917 - all that there is to know
    inference: Inference,
    shape: Sequence[int],
    sizes: Sequence[int],
    device: torch.device,
    order: torch.memory_format = torch.contiguous_format,
    warn: Callable[[str], object] = logger.warning,
) -> BatchGraphs | None:
    """Record ``inference`` for batches of inputs of ``shape``; None, after ``warn``, if that is not possible.

    ``order`` is the batches' memory format. Algorithms of cuDNN are measured, which pays for sizes that do
    not change. Raises LoadAgain if the process cannot be used after a recording that failed.
    """
    reason = os.environ.get(WITHOUT_GRAPHS, "")
    if torch.__version__ < OLDEST:
        reason = f"torch {torch.__version__} is older than {OLDEST}"
    if reason:
        warn(_NO_GRAPHS + reason)
        return None
    stream, measured = torch.cuda.current_stream(device), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    recordings: dict[int, GraphRecording] = {}
    recording_started = False
    try:
        # The largest first: the smaller ones reuse its memory.
        pool = torch.cuda.graph_pool_handle()
        for size in sorted(set(sizes), reverse=True):
            inputs = torch.zeros(size, *shape, device=device).contiguous(memory_format=order)
            _rehearse(inference, inputs)
            recording_started = True
            recordings[size] = _record(inference, inputs, pool)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        reason = first_line(error)
    finally:
        torch.backends.cudnn.benchmark = measured
    if reason:
        # Until torch 2.15, that of the recording stays the current one.
        torch.cuda.set_stream(stream)
        if not _is_sound(device) or (recording_started and torch.__version__ < FORGETS_FAILURES):
            raise LoadAgain(
                f"{_NO_GRAPHS}{reason}. That needs a new process, in which none are recorded",
                {WITHOUT_GRAPHS: reason},
            )
        warn(_NO_GRAPHS + reason)
        return None
    logger.info("Recorded CUDA graphs for batches of %s", ", ".join(map(str, sorted(recordings))))
    return BatchGraphs(recordings)


def _is_sound(device: torch.device) -> bool:
    """Whether CUDA still answers."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _rehearse(inference: Inference, inputs: torch.Tensor) -> None:
    """Let libraries choose algorithms and allocate memory. Raises TypeError for other answers than rows."""
    device = inputs.device
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(side):
        for _ in range(WARMUPS):
            answers = inference(inputs)
    torch.cuda.current_stream(device).wait_stream(side)
    if not isinstance(answers, torch.Tensor) or len(answers) != len(inputs):
        raise TypeError("the network does not return one row per input")


def _record(inference: Inference, inputs: torch.Tensor, pool: Any) -> GraphRecording:
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(inputs.device),
        torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
    ):
        answers = inference(inputs)
    return GraphRecording(inputs, answers, graph.replay)
