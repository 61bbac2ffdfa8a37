"""The GPU's benchmark, run shortly without one; how fast anything is does not matter here."""

from __future__ import annotations

import json
import sys
import types
from typing import TYPE_CHECKING

import pytest
from benchmarks import gpu
from benchmarks.gpu_utilisation import Utilisation
from benchmarks.measure import Sample

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


@pytest.mark.parametrize(("chip", "decode"), [(100.0, 400.0), (400.0, 100.0)])
def test_the_slower_loop_is_the_limit(chip: float, decode: float) -> None:
    """The server is held against what bounds it."""
    near, ahead = gpu.limit_marks(samples(chip=chip, decode=decode, serial=10.0, server=85.0), [1])

    assert (near.value, near.reached) == (pytest.approx(0.85), True)
    assert (ahead.value, ahead.reached) == (pytest.approx(8.5), True)


def test_options_reach_the_server() -> None:
    """What the command line asks for stands in the model's configuration."""
    flags = ["--cuda-graphs", "--decode", "nvjpeg", "--precision", "bf16"]
    settings = gpu.settings_of(gpu.parse(flags))

    assert settings["precision"] == "bf16"
    assert isinstance(settings["handler"], dict)
    assert settings["handler"]["cuda_graphs"] is True
    assert settings["handler"]["decode"] == "nvjpeg"


def test_utilisation_is_read_while_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked again and again, and let go in the end."""
    import threading

    seen, gone = threading.Event(), threading.Event()

    def rates(_: object) -> object:
        seen.set()
        return types.SimpleNamespace(gpu=42)

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=gone.set,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=rates,
        NVMLError=OSError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    with Utilisation(period=0.001) as utilisation:
        assert seen.wait(5)

    assert set(utilisation.percents) == {42.0}
    assert gone.is_set()
