"""The GPU's benchmark, run shortly without one; how fast anything is does not matter here."""

from __future__ import annotations

import json
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import gpu
from benchmarks.gpu_utilisation import Utilisation
from benchmarks.measure import Sample, figures
from benchmarks.servers import ROOT, BenchmarkError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_dry_run_on_the_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loops and server are measured, nothing is void, and the marks are told."""
    out = tmp_path / "gpu.json"
    status = gpu.main(["--device", "cpu", "--dry-run", "--out", str(out)])
    said = capsys.readouterr().out
    document = json.loads(out.read_text())

    assert status == 0, said
    subjects = [(each["subject"], each["connections"]) for each in document["figures"]]
    assert subjects == [("chip", 0), ("decode", 0), ("serial", 0), ("server", 1), ("server", 4)]
    assert all(each["rate"] > 0 and not each["failures"] for each in document["figures"])
    assert len(document["marks"]) == 2
    assert said.lower().count("reached: server / ") == 2


def samples(**rates: float) -> list[Sample]:
    """One repetition."""
    return [Sample(kind, 1 if kind == "server" else 0, 0, rate=rate) for kind, rate in rates.items()]


@pytest.mark.parametrize(
    ("where", "chip", "decode", "share"),
    [("cpu", 100.0, 400.0, 80), ("cpu", 400.0, 100.0, 50), ("nvjpeg", 100.0, 400.0, 50)],
)
def test_a_share_of_the_slower_loop_is_the_limit(
    where: str, chip: float, decode: float, share: float
) -> None:
    """The server is held against what bounds it, less what it has to share with others."""
    near, ahead = gpu.limit_marks(samples(chip=chip, decode=decode, serial=10.0, server=60.0), [1], where)

    assert (near.value, near.reached) == (pytest.approx(60 / share), share <= 60)
    assert (ahead.value, ahead.reached) == (pytest.approx(6.0), True)


def test_marks_have_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is printed with why it is no higher; docs/gpu.md has the shares."""
    page = (ROOT / "docs" / "gpu.md").read_text()
    for where, shares in gpu.SHARES.items():
        taken = samples(chip=100.0, decode=100.0, serial=10.0, server=60.0)
        gpu.print_report(figures(taken), taken, gpu.limit_marks(taken, [1], where), {}, where)
        said = capsys.readouterr().out

        assert said.index("server / smaller") < said.index(gpu.REASONS[where])
        assert said.index("server / serial") < said.index(gpu.REASONS["serial"])
        assert f"{shares['chip']:g} of `chip`" in page


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_options_reach_the_server(precision: str) -> None:
    """What the command line asks for stands in the model's configuration; TF32 is what GPUs use anyway."""
    flags = ["--cuda-graphs", "--decode", "nvjpeg", "--precision", precision]
    settings = gpu.settings_of(gpu.parse(flags))

    assert settings.get("precision", "tf32") == precision
    assert isinstance(settings["handler"], dict)
    assert settings["handler"]["cuda_graphs"] is True
    assert settings["handler"]["decode"] == "nvjpeg"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Two GPUs of which only the second is visible; what is ``used`` there, in MiB, can be set."""

    def read(index: int, **second: object) -> types.SimpleNamespace:
        assert index == 1
        return types.SimpleNamespace(**second)

    fake = types.SimpleNamespace(
        used=1000,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetUtilizationRates=lambda index: read(index, gpu=42, memory=7),
        nvmlDeviceGetMemoryInfo=lambda index: read(index, used=fake.used << 20, free=1 << 30, total=1 << 34),
        nvmlDeviceGetMigMode=lambda _index: (0, 0),
        nvmlDeviceGetComputeRunningProcesses=lambda _index: [],
        NVMLError=OSError,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr("modelserver.engine.telemetry.gpus.Driver.nvml", lambda _driver: fake)
    return fake


def test_utilisation_is_that_of_the_visible_gpu(
    nvml: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again and again until the block ends."""
    enough, rates = threading.Event(), nvml.nvmlDeviceGetUtilizationRates
    seen: list[int] = []

    def read(index: int) -> object:
        seen.append(index)
        if len(seen) == 3:
            enough.set()
        return rates(index)

    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", read)
    with Utilisation(period=0.001) as utilisation:
        assert enough.wait(5)

    assert set(utilisation.percents) == {42.0}


def test_workers_on_the_processor_are_noticed(
    nvml: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their description says that they have a GPU, if none of its memory is in use."""
    description = json.dumps([{"workers": [{"gpu": True}]}]).encode()
    monkeypatch.setattr(gpu, "call", lambda *_: (200, description))
    server: Any = types.SimpleNamespace(management_port=1)

    with pytest.raises(BenchmarkError, match="1000 MiB in use, and without the server it had 990"):
        gpu.check_device(server, "cuda", 990)
    with pytest.raises(BenchmarkError, match="do not run on cpu"):
        gpu.check_device(server, "cpu", 990)
    nvml.used = 1600
    gpu.check_device(server, "cuda", 990)
    gpu.check_device(server, "cuda", None)
