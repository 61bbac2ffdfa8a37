"""Checks of how a handler loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.engine.wire.probing import Imported, Reported, SourceLine, Training
from modelserver.tools.doctor.chart import Chart
from modelserver.tools.doctor.loading import check_imports, check_requirements, check_training

if TYPE_CHECKING:
    from pathlib import Path


def test_imports(tmp_path: Path) -> None:
    """The longest are told; one that takes long and is not used is a finding."""
    (tmp_path / "h.py").write_text("import httpx\nimport json\nimport httpx as used\nused\n")
    imported = [
        Imported("httpx", 0.9, 1.2, SourceLine("h.py", 1, "<module>")),
        Imported("json", 0.0, 0.01, SourceLine("h.py", 2, "<module>")),
        Imported("anyio", 0.3),
    ]
    chart = Chart()
    check_imports(chart, Reported(imported, 1.25, 0.5), tmp_path)

    assert chart.figures["load"] == {
        "import_seconds": 1.25,
        "initialize_seconds": 0.5,
        "packages": {"httpx": 0.9, "anyio": 0.3},
    }
    assert [(each.id, each.seen) for each in chart.findings] == [
        ("import-unused", "httpx takes 1.2 s to import, and h.py does not use it.")
    ]


def test_requirements(tmp_path: Path) -> None:
    """A package that is not listed is found, with the name to write; a listed one is not."""
    (tmp_path / "h.py").write_text("import sklearn\n")
    absent, other, listed = Chart(), Chart(), Chart()
    check_requirements(absent, tmp_path, None)
    (tmp_path / "needs.txt").write_text("httpx\n")
    check_requirements(other, tmp_path, "needs.txt")
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    check_requirements(listed, tmp_path, None)

    assert [each.seen for chart in (absent, other) for each in chart.findings] == [
        "h.py imports sklearn, and there is no requirements.txt.",
        "h.py imports sklearn, and needs.txt does not name it.",
    ]
    assert absent.findings[0].instead.startswith("Write scikit-learn into requirements.txt")
    assert listed.findings == []


def test_training() -> None:
    """The mode matters more where layers depend on it."""
    chart = Chart(methods={"load": SourceLine("h.py", 4)})
    check_training(chart, [Training("self.net", "Net", ["BatchNorm2d", "Dropout"])])

    (finding,) = chart.findings
    assert (finding.level, finding.place) == ("error", SourceLine("h.py", 4))
    assert finding.seen == "self.net (Net) is in training mode, with BatchNorm2d, Dropout."
