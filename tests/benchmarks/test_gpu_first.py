"""The first look at a GPU: its steps, its file, how it continues; a rehearsal takes steps of every kind."""

from __future__ import annotations

import json
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import gpu, gpu_faults, gpu_first, gpu_probes
from benchmarks.peers.packages import python_of
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from benchmarks.peers.packages import Peer

PASSES = f"print('two'); print('{gpu_first.RESULT}' + '{{\"verdict\": \"PASS\", \"figures\": {{}}}}')"


def outcomes(file: Path) -> dict[str, dict[str, Any]]:
    """By step; all other lines are comments."""
    lines = file.read_text().splitlines()
    assert all(line[0] in "#{" for line in lines)
    return {each["step"]: each for each in map(json.loads, (line for line in lines if line[0] == "{"))}


def processes(monkeypatch: pytest.MonkeyPatch, **codes: str) -> list[str]:
    """Three steps, whose processes run this Python; returns the names of those that were started."""
    started: list[str] = []

    def command(name: str, _options: argparse.Namespace) -> list[str]:
        started.append(name)
        return [sys.executable, "-c", codes.get(name, PASSES)]

    steps = {name: gpu_first.Step(lambda _: (True, {}), 0 if name == "late" else 1) for name in codes}
    monkeypatch.setattr(gpu_first, "STEPS", steps)
    monkeypatch.setattr(gpu_first, "command_of", command)
    monkeypatch.setattr(gpu_first.gpus, "read", lambda: (None,))
    return started


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "steps",
    [
        ("probe-versions", "probe-fork", "resnet-nvjpeg", "torchserve-4", "transformer", "steady"),
        tuple(f"fault-{name}" for name in gpu_first.FAULTS),
    ],
    ids=["measurements", "faults"],
)
def test_steps_are_rehearsed_without_a_gpu(steps: tuple[str, ...], tmp_path: Path) -> None:
    """Each runs through in a process of its own, and its figures say that they mean nothing."""
    file = tmp_path / "first.txt"

    status = gpu.main(
        ["first", "--device", "cpu", "--dry-run", "--out", str(file), "--steps", ",".join(steps)]
    )

    found = outcomes(file)
    assert status == 0, file.read_text()
    assert set(found) == set(steps)
    assert {each["note"] for each in found.values()} == {gpu_first.NOTHING}
    assert {name for name, each in found.items() if each["verdict"] != "REHEARSED"} <= {"torchserve-4"}


def test_each_step_has_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step that ends without an outcome broke, one that does not end is late, and the others still run; all
    that they print is in the file.
    """
    file = tmp_path / "first.txt"
    forever = "import threading; threading.Event().wait()"
    processes(monkeypatch, broken="raise SystemExit('no driver')", late=forever, good=PASSES)

    status = gpu_first.main(["--out", str(file)])

    assert status == 1
    assert {name: each["verdict"] for name, each in outcomes(file).items()} == {
        "broken": "BROKE",
        "late": "LATE",
        "good": "PASS",
    }
    assert {"# no driver", "# two"} <= set(file.read_text().splitlines())


def test_what_is_in_the_file_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Given again, the command takes the steps that are left; named ones are taken anew, and a rehearsal
    does not count.
    """
    file = tmp_path / "first.txt"
    started = processes(monkeypatch, a=PASSES, b=PASSES, c=PASSES)
    runs = []
    for flags in (["--dry-run"], ["--steps", "b"], [], [], ["--from", "b"], ["--steps", "a,c"]):
        gpu_first.main(["--out", str(file), *flags])
        runs.append("".join(started))
        started.clear()

    assert runs == ["abc", "b", "ac", "", "bc", "ac"]


def test_nothing_is_written_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a processor does would be taken for what a GPU does."""
    started = processes(monkeypatch, a=PASSES)
    monkeypatch.setattr(gpu_first.gpus, "read", tuple)

    assert gpu_first.main(["--out", str(tmp_path / "first.txt")]) == 1
    assert "no visible GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == started == []


def test_a_group_of_steps_has_a_name() -> None:
    """``probe`` is all probes, and an unknown name is refused."""
    options = gpu_first.parse(["--steps", "probe,steady"])
    chosen = gpu_first.chosen_steps(options, {})

    assert chosen == [*(f"probe-{name}" for name in gpu_first.PROBES), "steady"]
    with pytest.raises(SystemExit):
        gpu_first.parse(["--steps", "pro"])
    with pytest.raises(SystemExit):
        gpu_first.parse(["--device", "cpu"])


def test_probes_and_faults_are_those_that_there_are() -> None:
    """The command names each, without importing torch for it."""
    assert tuple(gpu_probes.PROBES) == gpu_first.PROBES
    assert tuple(gpu_faults.FAULTS) == gpu_first.FAULTS


def test_steps_fit_into_ten_minutes() -> None:
    """So long a command may run where machines are lent."""
    assert max(step.minutes for step in gpu_first.STEPS.values()) <= 10


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("name", [name for name in gpu_first.STEPS if name.startswith("resnet-")])
def test_a_network_passes_if_it_reaches_its_marks(
    name: str, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are those of the benchmark, which writes the figures."""

    def measured(arguments: list[str]) -> int:
        document = {"figures": [], "marks": [{"reached": reached}], "samples": [], "machine": {}}
        gpu.parse(arguments).out.write_text(json.dumps(document))
        return 0

    monkeypatch.setattr(gpu, "main", measured)
    passed, figures = gpu_first.STEPS[name].run(gpu_first.parse([]))

    assert passed is reached
    assert set(figures) == {"figures", "marks"}


def test_torchserve_is_skipped_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Folder, wheel and Java are each asked for; Java may lie in an archive, and the wheels are installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()

    def install(peers: Path, peer: Peer, wheels: list[Path]) -> None:
        assert [wheel.name for wheel in wheels] == ["torchserve-0.12.0-py3-none-any.whl"]
        put_program(python_of(peers, peer.name), "echo 0.12.0")

    def reason(place: Path | None) -> str:
        with pytest.raises(gpu.Skipped) as skipped:
            gpu_first._install_torchserve(place, folder)
        return str(skipped.value)

    monkeypatch.setattr(gpu_first, "install", install)
    assert "--torchserve" in reason(None)
    assert "no wheel of TorchServe" in reason(source)
    (source / "torchserve-0.12.0-py3-none-any.whl").touch()
    assert "java is missing" in reason(source)
    put_program(tmp_path / "jre" / "bin" / "java", "")
    with tarfile.open(source / "jre.txz", "w:xz") as archive:
        archive.add(tmp_path / "jre", "jre")

    assert gpu_first._install_torchserve(source, folder) == folder / "peers"


def put_program(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_the_docs_name_the_command() -> None:
    """docs/gpu.md says what to run, and which file to send."""
    page = (ROOT / "docs" / "gpu.md").read_text()

    assert "python -m benchmarks.gpu first" in page
    assert str(gpu_first.parse([]).out) in page
