from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelserver.errors import InvalidModel
from modelserver.tools.doctor.doctor import CheckOptions, examine
from modelserver.tools.doctor.findings import KINDS
from modelserver.tools.doctor.samples import JSON, InputRow

_BROKEN = Path(__file__).with_name("broken")
_ROWS = [InputRow(f"{number}.json", b'{"number": %d}' % number, JSON) for number in (2, 5, 7)]
_NO_ROW = InputRow("null.json", b"null", JSON)

# Findings by handler, with their lines.
_RESULT = {
    "mixing": {
        "not-required": 3,
        "import-unused": 3,
        "input-refused": 8,
        "answers-differ": 7,
        "bad-row-retried": 8,
        "empty-body": 8,
    },
    "sorting": {"order-changed": 13, "bad-row-spreads": 13, "threads-left": 26, "read-per-call": 14},
    "hashing": {"workers-differ": 5},
    "first_only": {"answers-vary": 8, "wrong-count": 8, "memory-grows": 8, "empty-body": 12},
    "ending": {"worker-ended": 7, "processes-left": 8},
    "training": {
        "training-mode": 7,
        "training-mode-unused": 7,
        "batch-failed": 13,
        "empty-body": 12,
        "gradients-on": 13,
        "built-per-call": 13,
        "workers-differ": 11,
    },
}


@pytest.fixture(scope="module")
def reports():
    rows = {name: [*_ROWS, _NO_ROW] if name == "mixing" else _ROWS for name in _RESULT}
    wishes = [CheckOptions(str(_BROKEN / f"{name}.py"), samples=rows[name]) for name in _RESULT]
    with ThreadPoolExecutor(2) as executor:
        return dict(zip(_RESULT, executor.map(examine, wishes), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", _RESULT)
def test_broken_handler_gets_its_findings(name, reports):
    report = reports[name]
    lines = {each.id: each.place.line if each.place else 0 for each in report.findings}
    lines.pop("batch-cost", None)

    assert lines == _RESULT[name], [each.seen for each in report.findings]


@pytest.mark.slow
def test_every_finding_is_printed(reports):
    text = {each.id for report in reports.values() for each in report.findings}
    assert text | {"load-failed", "batch-cost"} == KINDS.keys()


def test_handler_without_faults_has_no_findings(tmp_path):
    script = tmp_path / "adding.py"
    script.write_text(
        "import modelserver\n\nclass Adding(modelserver.Handler):\n"
        "    def predict(self, rows: list[list[float]]) -> list[float]:\n"
        "        return [sum(row) for row in rows]\n"
    )
    report = examine(CheckOptions(str(script), batch_size=3, calls=4))

    assert [each.seen for each in report.findings] == []
    assert "answers in batches of 2 and 3" in report.checked
    assert "cost of batches" in report.checked
    assert list(report.left_out) == ["memory, threads and processes"]


def test_model_that_cannot_be_checked_is_reported(tmp_path):
    """Where nothing is known of its inputs no answer is checked, as the report says first."""
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(InvalidModel):
        examine(CheckOptions(str(tmp_path / "notes.txt")))
    script = tmp_path / "echo.py"
    script.write_text("def handle(data, context):\n    return data\n")
    report = examine(CheckOptions(str(script)))
    assert report.unanswered.startswith("nothing is known about its inputs")
    assert "answers alone" not in report.checked
    script = tmp_path / "raising.py"
    script.write_text("def handle(data, context):\n    return absent\n")
    (finding,) = examine(CheckOptions(str(script))).findings

    assert finding.id == "load-failed"
    assert finding.seen == "NameError: name 'absent' is not defined (raising.py, line 2, in handle)"
    assert (finding.place.line, finding.place.function) == (2, "handle")
