"""What probes conclude, on a simulated GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from benchmarks import gpu_probes
from tests.simulated_gpu import SimulatedGpus
from torchvision.io import ImageReadMode

from modelserver_handlers.pictures import nvjpeg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpus]:
    """One GPU; what probes set for their process is set back."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    precision, interval = torch.get_float32_matmul_precision(), sys.getswitchinterval()
    yield SimulatedGpus().install(monkeypatch.setattr)
    torch.set_float32_matmul_precision(precision)
    sys.setswitchinterval(interval)


def take(name: str) -> gpu_probes.Outcome:
    return gpu_probes.PROBES[name](gpu_probes.REHEARSAL)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["resampling", "failed_capture", "compiled_requests"])
def test_a_gpu_that_computes_as_the_processor_passes(name: str) -> None:
    """Its numbers and its memory are as they should be."""
    passed, figures = take(name)

    assert passed, figures


@pytest.mark.usefixtures("gpus")
def test_batches_land_as_on_the_processor() -> None:
    """The simulated GPU's floats are its own; how long that takes does not matter here."""
    assert take("landing")[1]["difference"] == 0


@pytest.mark.usefixtures("gpus")
def test_other_numbers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that differs by one is noticed."""
    resize = gpu_probes.resize_crops
    calls: list[int] = []

    def rounded(pictures: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
        calls.append(0)
        return [crop + (len(calls) == 3) for crop in resize(pictures, *rest)]

    monkeypatch.setattr(gpu_probes, "resize_crops", rounded)
    passed, figures = take("resampling")

    assert not passed
    assert isinstance(figures["differences"], dict)
    assert sorted(set(figures["differences"].values()))[-1] >= 1


@pytest.mark.parametrize(("gpus_of_nvml", "passed"), [(1, True), (2, False)])
def test_versions_are_compared(
    gpus_of_nvml: int, passed: bool, gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML and torch must count alike, and torch must have kernels for the GPU."""
    monkeypatch.setattr(gpu_probes.gpus, "count", lambda: gpus_of_nvml)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90a"])

    assert take("versions")[0] is passed
    gpus.capability = (12, 0)
    assert take("versions")[0] is False


def test_an_assertion_is_no_lack_of_memory(gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe passes where the error is sticky, and the server tells it from a lack of memory."""
    index = torch.Tensor.__getitem__

    def fails(tensor: torch.Tensor, place: object) -> torch.Tensor:
        if isinstance(place, torch.Tensor):
            gpus.fail()
            return tensor
        return index(tensor, place)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "__getitem__", fails)
    monkeypatch.setattr(gpu_probes, "is_out_of_memory", lambda _: False)
    passed, figures = take("poisoned")

    assert passed, figures
    assert "device-side assert" in str(figures["error"])
    assert "device-side assert" in str(figures["afterwards"])


def test_memory_that_is_given_back_passes(gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much is refused, and half of it can be had."""

    def empty(size: int, **_: object) -> None:
        with gpus.allocation(size):
            pass

    monkeypatch.setattr(torch, "empty", empty)

    assert take("out_of_memory")[0]


@pytest.mark.usefixtures("gpus")
def test_pictures_of_new_sizes_may_not_be_much_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe decodes pictures of one size and of many, and a damaged one."""

    def decode(encoded: Sequence[torch.Tensor], _device: torch.device) -> list[torch.Tensor]:
        return [torch.ops.image.decode_jpeg(each, ImageReadMode.RGB.value, False) for each in encoded]

    monkeypatch.setattr(nvjpeg, "decode_on_gpu", decode)
    _, figures = take("nvjpeg")

    assert isinstance(figures["new sizes/s"], list)
    assert figures["grown MiB"] == 0
    assert figures["damaged"] != "not noticed"


@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_replays_are_compared_with_eager_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size, in both precisions; an answer that is not the network's fails."""
    monkeypatch.setattr(gpu_probes, "record_graphs", lambda run, *_: run)
    _, figures = take("graphs")
    assert [figures[name]["deviation"] for name in ("fp32", "bf16")] == [0, 0]  # type: ignore[index]

    monkeypatch.setattr(gpu_probes, "record_graphs", lambda run, *_: lambda batch: 2 * run(batch))
    assert take("graphs")[0] is False


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["launching_beside_decoders", "ceilings"])
@pytest.mark.slow
def test_figures_without_a_verdict(name: str) -> None:
    """They are what there is to gain, and all of them are there."""
    passed, figures = take(name)

    assert passed
    assert len(figures) == {"launching_beside_decoders": 3, "ceilings": 6}[name]


@pytest.mark.slow
def test_a_child_that_cannot_use_cuda_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe runs the imports in a process of its own, and forks it."""
    monkeypatch.setattr(gpu_probes, "IMPORTS", "import os, torch\n")
    passed, figures = take("fork")

    assert not passed
    assert str(figures["said"]).startswith("child: ")
