"""Graphs by batch size; recordings are played by functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.networks import cuda_graphs
from modelserver_handlers.networks.cuda_graphs import BatchGraphs, Recording, batch_sizes, record_graphs

if TYPE_CHECKING:
    from collections.abc import Callable


def played(size: int, replayed: list[int]) -> Recording:
    """Doubles the sums of its inputs, and says that it was replayed."""
    inputs, answers = torch.full((size, 3), 9.0), torch.zeros(size, 1)

    def replay() -> None:
        replayed.append(size)
        answers.copy_(2 * inputs.sum(dim=1, keepdim=True))

    return Recording(inputs, answers, replay)


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_sizes(largest: int, sizes: tuple[int, ...]) -> None:
    """Powers of two, and the largest batch itself."""
    assert batch_sizes(largest) == sizes


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_the_next_larger_size_is_replayed(rows: int, size: int) -> None:
    """A batch gets as many answers as it has rows, its own ones, and they outlive the next replay."""
    replayed: list[int] = []
    graphs = BatchGraphs({each: played(each, replayed) for each in (4, 1, 2)})
    batch = torch.arange(rows * 3.0).view(rows, 3)
    assert graphs.fits(batch)
    answers = graphs(batch)
    graphs(torch.full((rows, 3), 7.0))

    assert torch.equal(answers, 2 * batch.sum(dim=1, keepdim=True))
    assert replayed == [size, size]
    assert graphs.sizes == (1, 2, 4)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(5, 3),
        torch.zeros(0, 3),
        torch.zeros(2, 4),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        [1, 2],
    ],
    ids=["too many", "none", "shape", "type", "device", "gradients", "no tensor"],
)
def test_what_does_not_fit(batch: Any) -> None:
    """Other batches are for the network itself."""
    assert not BatchGraphs({4: played(4, [])}).fits(batch)


@pytest.fixture
def no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the part of a GPU that needs one."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))


def recorder(measured: list[bool]) -> Callable[..., Recording]:
    """Takes the place of what records."""

    def record(inference: Any, inputs: torch.Tensor, _pool: Any) -> Recording:
        measured.append(torch.backends.cudnn.benchmark)
        return Recording(inputs, inference(inputs), lambda: None)

    return record


@pytest.mark.usefixtures("no_pool")
def test_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size is recorded with algorithms that were measured; after that, nothing is measured."""
    measured: list[bool] = []
    monkeypatch.setattr(cuda_graphs, "_record", recorder(measured))
    graphs = record_graphs(lambda batch: batch, (3, 4), (1, 2, 2), torch.device("cpu"))

    assert graphs is not None
    assert graphs.sizes == (1, 2)
    assert graphs.fits(torch.zeros(2, 3, 4))
    assert measured == [True, True]
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.usefixtures("no_pool")
def test_what_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The network then runs without, after one warning."""

    def fail(*_: Any) -> Recording:
        raise RuntimeError("not permitted while recording")

    monkeypatch.setattr(cuda_graphs, "_record", fail)

    assert record_graphs(lambda batch: batch, (3,), (1,), torch.device("cpu")) is None
    assert caplog.messages == [
        "CUDA graphs could not be recorded, the network runs without: not permitted while recording"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """A real recording computes what the network does."""
    device = torch.device("cuda")
    network = torch.nn.Conv2d(3, 4, 3).to(device).eval()

    def inference(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            answers: torch.Tensor = network(batch)
            return answers

    graphs = record_graphs(inference, (3, 8, 8), batch_sizes(4), device)
    batch = torch.randn(3, 3, 8, 8, device=device)

    assert graphs is not None
    assert torch.allclose(graphs(batch), inference(batch), atol=1e-2)
