"""The comparison as a program, with our own server and the echo for moments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import compare
from benchmarks.archives import build_mlp, build_noop, build_variant
from benchmarks.compare import chosen_subjects, parse
from benchmarks.plots import can_plot
from benchmarks.side_by_side import Result
from benchmarks.works import WORKS

from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The status and the folder of a dry run."""
    folder = tmp_path_factory.mktemp("compare")
    return compare.main(["--dry-run", "--out", str(folder)]), folder


def document(rehearsal: tuple[int, Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((rehearsal[1] / "compare.json").read_text())
    return found


@pytest.mark.slow
def test_a_rehearsal_measures_every_kind_of_figure(rehearsal: tuple[int, Path]) -> None:
    """Starts, memory, rates, processor time, ratios and the latency at half load come of one command."""
    works = document(rehearsal)["works"]
    half = works["mlp_b32"]["half_load"]

    assert rehearsal[0] == 0
    assert list(works) == ["start", "noop_b32", "mlp_b32"]
    assert {figure["subject"] for figure in works["noop_b32"]["figures"]} == {"echo", "window", "adaptive"}
    assert all(figure["rate"] > 0 and figure["cpu_us"] > 0 for figure in works["noop_b32"]["figures"])
    assert all(ratio["to echo"] > 0 for ratio in works["noop_b32"]["ratios"])
    assert all(figure["p99_ms"] > 0 and not figure["failures"] for figure in half)
    assert [figure["subject"] for figure in half] == ["window", "adaptive"]


@pytest.mark.slow
def test_a_rehearsal_times_the_start(rehearsal: tuple[int, Path]) -> None:
    """Listening, ready, first answer come in this order; proportional memory is not more than resident."""
    start = document(rehearsal)["works"]["start"]
    (times,) = start["starts"]["window"]
    (memory,) = start["memory"]["window"]

    assert 0 < times["listening_s"] <= times["ready_s"] <= times["answer_s"]
    assert 0 < memory["pss_mb"] <= memory["rss_mb"]
    assert memory["processes"] >= 2


@pytest.mark.slow
def test_marks_that_were_not_run_are_not_reached(rehearsal: tuple[int, Path]) -> None:
    """Without TorchServe in the run no mark about it is reached, and each says why."""
    marks = [mark for mark in document(rehearsal)["marks"] if "TorchServe" in mark["what"]]

    assert len(marks) > 20
    assert not any(mark["reached"] for mark in marks)
    assert {mark["absent"] for mark in marks} == {"not run"}


@pytest.mark.slow
def test_a_rehearsal_leaves_a_report(rehearsal: tuple[int, Path]) -> None:
    """Markdown with the machine, servers, queues and marks; pictures where matplotlib is."""
    text = (rehearsal[1] / "compare.md").read_text()
    pictures = {path.name for path in rehearsal[1].glob("*.png")}

    assert "- cores: " in text
    assert "job_queue_size=1000" in text
    assert "NOT REACHED: " in text
    assert pictures == (
        {"start.png", "noop_b32.png", "mlp_b32.png", "mlp_b32_half.png"} if can_plot() else set()
    )


def test_a_peer_that_cannot_start_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Without its environment it is a line with a reason, and the program goes on to its end."""
    status = compare.main(["--dry-run", "--works", "start", "--subjects", "litserve"])
    said = capsys.readouterr().out

    assert status == 0
    assert "cannot start: litserve: no folder with peers given" in said
    assert "## Marks" in said


def test_named_subjects_take_part() -> None:
    """A name stands for itself or its group; some peers take part only when named."""
    everyone = {subject.name for subject in chosen_subjects(None)}

    assert {"echo", "fastapi", "window", "adaptive", "torchserve", "torchserve-quiet", "litserve"} <= everyone
    assert not everyone & {"rayserve", "bentoml", "mlserver"}
    assert [subject.name for subject in chosen_subjects(["torchserve"])] == ["torchserve", "torchserve-quiet"]
    assert [subject.name for subject in chosen_subjects(["torchserve-quiet"])] == ["torchserve-quiet"]
    assert [subject.name for subject in chosen_subjects(["rayserve"])] == ["rayserve"]


@pytest.mark.parametrize("option", ["--works", "--subjects"])
def test_unknown_names_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts."""
    with pytest.raises(SystemExit):
        parse([option, "nothing"])

    assert option in capsys.readouterr().err


def test_a_rehearsal_is_short_unless_told_otherwise() -> None:
    """Durations shrink; works and subjects that are named stay."""
    options = parse(["--dry-run", "--works", "lone_noop"])

    assert (options.works, options.reps, options.client) == (("lone_noop",), 1, "asyncio")
    assert options.duration < 1


def test_the_closing_names_versions_and_reasons() -> None:
    """One line of a refusal is enough there; whoever had no part is said to have none."""
    subjects = chosen_subjects(["echo", "torchserve-quiet", "litserve"])
    result = Result(WORKS["noop_b1"], queues={"echo": "none"}, refusals={"litserve": "no port\nmany lines"})
    lines = compare.closing(subjects, {"noop_b1": result}, None).splitlines()

    assert any("uvicorn echo" in line and line.endswith(" ran |") for line in lines)
    assert any("LitServe" in line and "cannot start: no port |" in line for line in lines)
    assert any("logs off" in line and "no part in these works" in line for line in lines)


def test_variants_hold_the_same_model(tmp_path: Path) -> None:
    """Another archive with the model's files and other settings."""
    import zipfile

    import yaml

    for name in ("model.py", "weights.pth", "index_to_name.json", "handler.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    config = ArchiveConfig(
        model_name="net",
        handler="image_classifier",
        version="1.0",
        model_file=tmp_path / "model.py",
        serialized_file=tmp_path / "weights.pth",
        extra_files=str(tmp_path / "index_to_name.json"),
        export_path=tmp_path,
    )
    build_archive(config)
    made = build_variant(tmp_path, "net.mar", "net-bf16", {"handler": {"precision": "bf16"}})
    with zipfile.ZipFile(tmp_path / "net.mar") as plain, zipfile.ZipFile(tmp_path / made) as variant:
        added = set(variant.namelist()) - set(plain.namelist())
        settings = yaml.safe_load(variant.read("model-config.yaml"))
        same = plain.read("weights.pth") == variant.read("weights.pth")

    assert added == {"model-config.yaml"}
    assert settings == {"handler": {"precision": "bf16"}}
    assert same


def test_archives_of_small_models_are_made(tmp_path: Path) -> None:
    """No-op and MLP, under names that registrations use."""
    assert build_noop(tmp_path) == "noop.mar"
    assert build_mlp(tmp_path) == "mlp.mar"
