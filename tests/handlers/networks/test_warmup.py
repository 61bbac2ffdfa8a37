"""The first batches."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from tests.simulated_gpu import GIB, SimulatedGpus, cuda_error

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks import warmup

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1]), (2, [2, 1]), (8, [8, 1, 4, 2]), (12, [12, 1, 8, 4, 2])]
)
def test_largest_and_smallest_sizes_come_first(batch_size: int, sizes: list[int]) -> None:
    """The largest and the smallest first, then the powers of two between."""
    assert warmup.sizes(batch_size) == sizes


def test_what_takes_long_is_cut_short() -> None:
    """Full batches and lone rows always run; after that only while it is quick."""
    seen: list[int] = []

    assert warmup.warm_up(lambda rows: seen.append(len(rows)), (2,), 8, long=0.0)
    assert seen == [8, 1]


# On a GPU


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: device-side assert triggered", RuntimeError),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", RuntimeError),
        ("CUDA driver error: invalid device context", RuntimeError),
        ("CUDA error: no kernel image is available for execution on the device", ModelLoadError),
    ],
)
def test_errors_of_cuda_fail_the_load(message: str, kind: type[Exception]) -> None:
    """The error is named; only one that comes again with certainty is of the permanent kind."""

    def run(_rows: torch.Tensor) -> None:
        raise cuda_error(message)

    with pytest.raises(RuntimeError, match=f"batches of 4 failed on the GPU: .*{message}") as caught:
        warmup.warm_up(run, (2,), 4, GPU)

    assert type(caught.value) is kind


def test_an_asynchronous_error_is_noticed(gpus: SimulatedGpus) -> None:
    """A kernel that fails after the call has returned fails the load, too, with the size that it was for."""
    with pytest.raises(RuntimeError, match=r"batches of 1 failed on the GPU: .*device-side assert"):
        warmup.warm_up(lambda rows: gpus.fail() if len(rows) == 1 else None, (2,), 4, GPU)


def test_every_size_is_computed_to_its_end(gpus: SimulatedGpus) -> None:
    """The time that warming up may take is that of the GPU's work, not of launching it."""
    assert warmup.warm_up(lambda _rows: None, (2,), 4, GPU)
    assert gpus.calls.count("synchronize") == 3


@pytest.mark.parametrize("message", ["no such rows", "\"slow_conv\" not implemented for 'CUDA'"])
def test_a_mistake_in_the_network_is_a_warning(message: str, caplog: pytest.LogCaptureFixture) -> None:
    """On a GPU as on a processor: the rows may be others than those of clients."""

    def run(_rows: torch.Tensor) -> None:
        raise ValueError(message)

    assert not warmup.warm_up(run, (2,), 4, GPU)
    assert caplog.messages == [f"Warming up with rows of (2,) failed: ValueError: {message}"]


class Activations:
    """What a network holds while it computes."""


def taking(gpus: SimulatedGpus, row: int, held: list[weakref.ref[Activations]]) -> Callable[..., None]:
    """A network that needs ``row`` bytes for each row, and activations that ``held`` refers to."""

    def run(rows: torch.Tensor) -> None:
        assert all(activations() is None for activations in held)
        activations = Activations()
        held.append(weakref.ref(activations))
        with gpus.allocation(row * len(rows)):
            pass

    return run


@pytest.mark.usefixtures("collects_nothing")
def test_too_large_batches_are_told(gpus: SimulatedGpus) -> None:
    """The largest size that fits is named, and nothing of a failed batch is left when the next is tried."""
    gpus.memory = 10 * GIB
    notes: list[str] = []
    held: list[weakref.ref[Activations]] = []

    assert warmup.warm_up(taking(gpus, GIB, held), (2,), 24, GPU, notes.append)
    (line,) = notes
    assert line.startswith("Batches of 24 do not fit into the GPU's memory, those of 8 do: OutOfMemoryError")
    assert len(held) == len(warmup.sizes(24))
    assert gpus.calls.count("empty_cache") == 2


def test_a_row_that_does_not_fit_fails_the_load(gpus: SimulatedGpus) -> None:
    """The load fails, with torch's numbers; another process may have taken the memory for a while."""
    with pytest.raises(RuntimeError, match=r"batches of 1 failed .*Tried to allocate 90\.00 GiB") as caught:
        warmup.warm_up(taking(gpus, 90 * GIB, []), (2,), 4, GPU)

    assert not isinstance(caught.value, ModelLoadError)
