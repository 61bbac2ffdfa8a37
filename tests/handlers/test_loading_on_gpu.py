"""Networks that are loaded on a simulated GPU: warmed up, compiled, recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.simulated_gpu import GIB, SimulatedGpus
from torch import nn

from modelserver_handlers.image_classifier import ImageClassifier

if TYPE_CHECKING:
    from pathlib import Path


class Three(nn.Module):
    """Three numbers for each picture; remembers the batches' sizes and whether they were channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)
        self.seen: list[tuple[int, bool]] = []
        self.eval()

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Rows x 3 x any x any to rows x 3."""
        if not torch.compiler.is_compiling():
            self.seen.append((len(pictures), pictures.is_contiguous(memory_format=torch.channels_last)))
        answers: torch.Tensor = self.layer(pictures).mean((2, 3))
        return answers


@pytest.fixture
def classifier(tmp_path: Path, make_context: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Initialises a classifier with a network on a GPU, or on the processor; returns it."""

    def made(
        network: nn.Module, config: dict[str, Any] | None = None, gpu: int | None = 0
    ) -> ImageClassifier:
        handler = ImageClassifier()
        monkeypatch.setattr(handler, "_ms_load_model", lambda _folder: network)
        context = make_context(tmp_path, config)
        context.system_properties["gpu_id"] = gpu
        handler.initialize(context)
        return handler

    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    return made


def rows_of(pictures: list[bytes], count: int) -> list[dict[str, Any]]:
    """Requests; from three on, the last has a tensor instead of a picture."""
    rows: list[dict[str, Any]] = [{"data": pictures[idx % len(pictures)]} for idx in range(count)]
    if count > 2:
        rows[-1] = {"data": torch.ones(3, 224, 224).tolist()}
    return rows


@pytest.mark.usefixtures("gpus")
def test_nothing_is_compiled_in_requests(classifier: Any, begin: Any, pictures: list[bytes]) -> None:
    """A compiled network is warmed up with batches in the memory format of clients' batches."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    handler = classifier(Three(), {"pt2": {"compile": {"enable": True, "backend": "eager"}}})
    compiled = counters["unique_graphs"]
    for count in (8, 1, 3, 5):
        begin(handler.context, count)
        assert len(handler.handle(rows_of(pictures, count), handler.context)) == count

    assert compiled > 0
    assert counters["unique_graphs"] == compiled


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("optimize", ["auto", "off"])
def test_batches_have_one_memory_format(
    optimize: str, classifier: Any, begin: Any, pictures: list[bytes]
) -> None:
    """That of warming up is that of requests: kernels are loaded and chosen for it."""
    network = Three()
    handler = classifier(network, {"optimize": optimize})
    warmed = set(network.seen)
    network.seen.clear()
    for count in (8, 1, 4):
        begin(handler.context, count)
        handler.handle(rows_of(pictures, count), handler.context)

    assert {size for size, _ in warmed} == {8, 4, 2, 1}
    assert all(ordered is (optimize == "auto") for size, ordered in (*warmed, *network.seen))


class Failing(Three):
    """A kernel of its forward fails."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        super().__init__()
        self.gpus = gpus

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """As Three, except that the GPU is of no use afterwards."""
        answers = super().forward(pictures)
        self.gpus.fail()
        return answers


def test_a_kernel_that_fails_while_warming_up(classifier: Any, gpus: SimulatedGpus) -> None:
    """The model is not loaded, instead of failing requests."""
    with pytest.raises(RuntimeError, match=r"batches of 8 failed on the GPU: .*device-side assert"):
        classifier(Failing(gpus))


class Large(Three):
    """Needs 2 GiB of the GPU for each picture."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        super().__init__()
        self.gpus = gpus

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """As Three."""
        with self.gpus.allocation(2 * GIB * len(pictures)):
            return super().forward(pictures)


def test_full_batches_that_do_not_fit(
    classifier: Any, gpus: SimulatedGpus, begin: Any, pictures: list[bytes]
) -> None:
    """Whoever registers the model learns which do; smaller batches are answered."""
    gpus.memory = 12 * GIB
    handler = classifier(Large(gpus))
    begin(handler.context, 4)

    (line,) = handler.context._ms_warnings
    assert line.startswith("Batches of 8 do not fit into the GPU's memory, those of 4 do: ")
    assert len(handler.handle(rows_of(pictures, 4), handler.context)) == 4


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("config", "asked", "used"),
    [
        ({}, "default", "tf32"),
        ({"precision": "tf32"}, "tf32", "tf32"),
        ({"precision": "fp32"}, "fp32", "fp32"),
    ],
    ids=str,
)
def test_the_precision_of_float32_is_described(
    config: dict[str, Any], asked: str, used: str, classifier: Any
) -> None:
    """What was asked for, and what the GPU computes in."""
    context = classifier(Three(), config).context

    assert (context._ms_precision["asked"], context._ms_precision["used"]) == (asked, used)
    assert context._ms_warnings == []


def test_tf32_on_a_processor(classifier: Any) -> None:
    """Whoever asks for it is told that there is none; nothing is said of exact numbers, nor by default."""
    contexts = [classifier(Three(), config, None).context for config in ({}, {"precision": "fp32"})]
    (line,) = classifier(Three(), {"precision": "tf32"}, None).context._ms_warnings

    assert line.startswith("precision: tf32 is not used, but fp32: TF32 is for NVIDIA's GPUs")
    assert [(context._ms_warnings, context._ms_precision) for context in contexts] == [([], {}), ([], {})]


def test_tf32_where_there_is_none(classifier: Any, gpus: SimulatedGpus) -> None:
    """Whoever asks for it is told that an older GPU does not have it; by default nobody is warned."""
    gpus.capability = (7, 5)

    assert classifier(Three()).context._ms_warnings == []
    (line,) = classifier(Three(), {"precision": "tf32"}).context._ms_warnings
    assert line.startswith("precision: tf32 is not used, but fp32: the GPU has no TF32")


def test_recorded_batches_are_replayed(
    classifier: Any, gpus: SimulatedGpus, begin: Any, pictures: list[bytes]
) -> None:
    """With ``cuda_graphs``, the network is not called for clients' batches, and its answers are the same."""
    network = Three()
    plain, handler = classifier(network), classifier(network, {"handler": {"cuda_graphs": True}})
    begin(plain.context, 3)
    expected = plain.handle(rows_of(pictures, 3), plain.context)
    before = len(network.seen)
    begin(handler.context, 3)
    answers = handler.handle(rows_of(pictures, 3), handler.context)

    assert [list(answer.values()) for answer in answers] == [
        pytest.approx(list(answer.values()), abs=1e-6) for answer in expected
    ]
    assert gpus.replayed == 1
    assert len(network.seen) == before
