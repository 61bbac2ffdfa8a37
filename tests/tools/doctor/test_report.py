from pathlib import Path

from modelserver.tools.doctor.command import as_json, as_text, display_path, verdict
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.probing import SourceLine
from modelserver.tools.serve.console import Style


def sample_report():
    made = CheckReport(
        checked=["loading", "answers alone"], left_out={"order": "one input", "memory": "one input"}
    )
    made.add("order-changed", "Row 0 got the answer of row 1.", SourceLine("h.py", 3, "handle"))
    made.add("order-changed", "The same again.", SourceLine("h.py", 3, "handle"))
    made.add("batch-cost", "A row costs 2 ms.", advice="Set batchSize: 8.")
    made.figures = {
        "load": {"import_seconds": 1.25, "initialize_seconds": 0.5, "packages": {"torch": 1.0}},
        "cost": {"ms_by_batch": {"1": 2.0, "2": 3.0}},
        "memory": {"calls": 200, "before_mb": 21.5, "after_mb": 22.0},
    }
    return made


def test_text_report_lists_findings_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.py").touch()
    text = as_text("h.py", sample_report(), tmp_path / "h.py", Style({}))

    assert text.splitlines() == [
        "h.py: 1 error",
        "",
        "error     order-changed  h.py:3, in handle",
        "          Row 0 got the answer of row 1.",
        "          why: Each client gets the answer at its row's place: here another client's.",
        "          instead: Return answers in the order of data: a list by index, not a set, a sorted list,",
        "          or what is ready first.",
        "",
        "advice    batch-cost",
        "          A row costs 2 ms.",
        "          why: Batches are the cheapest way to more requests per second.",
        "          instead: Set batchSize: 8.",
        "",
        "load      imports 1.2 s, initialize 0.5 s (torch 1 s)",
        "cost      1: 2 ms, 2: 3 ms by batch size",
        "memory    21.5 to 22 MiB in 200 calls",
        "checked   loading; answers alone",
        "left out  order, memory (one input)",
    ]


def test_json_report_has_the_findings():
    document = as_json("m.mar", sample_report(), Path("/store/m.mar"), ok=False)
    first, second = document["findings"]

    assert (document["ok"], document["errors"], document["warnings"]) == (False, 1, 0)
    keys = ("id", "level", "file", "line", "function")
    assert [first[key] for key in keys] == ["order-changed", "error", "h.py", 3, "handle"]
    assert (second["file"], second["instead"]) == (None, "Set batchSize: 8.")
    assert document["not_checked"] == {"order": "one input", "memory": "one input"}


def test_verdict_counts_and_files_have_their_paths(tmp_path):
    """A copy of a name with dots has the script's."""
    made = CheckReport()
    assert verdict(made) == "nothing is wrong"
    for line in (1, 2):
        made.add("gradients-on", "seen", SourceLine("h.py", line))
    assert verdict(made) == "2 warnings"
    (tmp_path / "helper.py").touch()
    for file, path in (("helper.py", "helper.py"), ("h_1.py", "h.1.py")):
        assert display_path(SourceLine(file, 1), tmp_path / "h.1.py") == str(tmp_path / path)
