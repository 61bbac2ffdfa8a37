import pytest

from modelserver.tools.doctor import load_checks
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.probing import Imported, Reported, SourceLine, Training


def test_slow_unused_import_is_a_finding(tmp_path):
    (tmp_path / "h.py").write_text("import httpx\nimport json\nimport httpx as used\nused\n")
    imported = [
        Imported("httpx", 0.9, 1.2, SourceLine("h.py", 1, "<module>")),
        Imported("json", 0.0, 0.01, SourceLine("h.py", 2, "<module>")),
        Imported("anyio", 0.3),
    ]
    report = CheckReport()
    load_checks.check_imports(report, Reported(imported, 1.25, 0.5), tmp_path)

    packages = {"httpx": 0.9, "anyio": 0.3}
    load = {"import_seconds": 1.25, "initialize_seconds": 0.5, "packages": packages}
    assert report.figures["load"] == load
    assert [(each.id, each.seen) for each in report.findings] == [
        ("import-unused", "httpx takes 1.2 s to import, and h.py does not use it.")
    ]


def test_package_missing_from_requirements_is_a_finding(tmp_path):
    (tmp_path / "h.py").write_text("import sklearn\n")
    absent, other, listed = CheckReport(), CheckReport(), CheckReport()
    load_checks.check_requirements(absent, tmp_path, None)
    (tmp_path / "needs.txt").write_text("httpx\n")
    load_checks.check_requirements(other, tmp_path, "needs.txt")
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    load_checks.check_requirements(listed, tmp_path, None)

    assert [each.seen for report in (absent, other) for each in report.findings] == [
        "h.py imports sklearn, and there is no requirements.txt.",
        "h.py imports sklearn, and needs.txt does not name it.",
    ]
    assert absent.findings[0].instead.startswith("Write scikit-learn into requirements.txt")
    assert listed.findings == []


def test_network_in_training_mode_is_a_finding():
    report = CheckReport(methods={"load": SourceLine("h.py", 4)})
    load_checks.check_training(report, [Training("self.net", "Net", ["BatchNorm2d", "Dropout"])])

    (finding,) = report.findings
    assert (finding.level, finding.place) == ("error", SourceLine("h.py", 4))
    assert finding.seen == "self.net (Net) is in training mode, with BatchNorm2d, Dropout."


_SOURCE = """
import json, os.path
import helper
from typing import TYPE_CHECKING
import sklearn.svm as svm, yaml
from . import beside
from httpx import Client

if TYPE_CHECKING:
    import pandas
try:
    import ujson
except ImportError:
    ujson = None
try:
    import psutil
finally:
    pass


def handle(data, context) -> "Client":
    import captum
    return svm, os
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "handler.py").write_text(_SOURCE)
    (tmp_path / "helper.py").write_text("import handler\n")
    (tmp_path / "broken.py").write_text("def\n")
    return tmp_path


def test_imports_have_lines_and_use(folder):
    used = {"os": 2, "typing": 4, "sklearn": 5, "httpx": 7}
    unused = {"json": 2, "yaml": 5, "psutil": 16, "captum": 22}

    assert {each.package: each for each in load_checks.imports_of(folder)} == {
        name: load_checks.Import(name, SourceLine("handler.py", line), used=name in used)
        for name, line in {**used, **unused}.items()
    }


@pytest.mark.parametrize(
    ("requirements", "absent"),
    [
        (None, ["sklearn", "httpx", "psutil", "captum"]),
        ("scikit_learn>=1  # for one\nhttpx[http2]\n\n-r more.txt\n", ["psutil", "captum"]),
        (
            "git+https://host/psutil.git@v1\nhttps://host/x.whl#egg=captum\nHTTPX @ https://host/h",
            ["sklearn"],
        ),
    ],
)
def test_missing_lists_packages_that_are_not_required(folder, requirements, absent):
    """Packages are installed by other names than they are imported by."""
    assert list(load_checks.missing(load_checks.imports_of(folder), requirements)) == absent
    assert [*map(load_checks.distribution_of, ("yaml", "unknown_one"))] == ["PyYAML", "unknown_one"]
