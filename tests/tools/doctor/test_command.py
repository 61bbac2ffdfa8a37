import json
import subprocess
import sys
from unittest.mock import Mock

import pytest

from modelserver.__main__ import main
from modelserver.errors import InvalidModel
from modelserver.tools.doctor import command
from modelserver.tools.doctor.findings import CheckReport


@pytest.fixture
def examined(monkeypatch):
    """What is wished; the chart has what its first element names."""
    wishes = []

    def examine(wish):
        wishes.append(wish)
        report = CheckReport()
        if wish.source.endswith("bad.py"):
            report.add("wrong-count", "seen")
        if not wish.samples:
            report.unanswered = "nothing is known"
        report.add("gradients-on", "seen")
        return report

    monkeypatch.setattr(command, "examine", examine)
    return wishes


@pytest.fixture
def script(tmp_path):
    (tmp_path / "h.py").touch()
    (tmp_path / "bad.py").touch()
    return str(tmp_path / "h.py")


def test_exit_status_follows_findings(script, examined, capsys):
    """0 without errors, 1 with some; warnings count with --strict. 3 if nothing was wrong or asked."""
    values = ["--input", script]
    assert main(["check", script, *values]) == 0
    assert ": 1 warning" in capsys.readouterr().out
    assert main(["check", script, *values, "--strict"]) == 1
    assert main(["check", script.replace("h.py", "bad.py"), *values]) == 1
    assert main(["check", script.replace("h.py", "bad.py")]) == 1
    capsys.readouterr()
    assert main(["check", script]) == 3
    assert ": no answer was checked (nothing is known), 1 warning" in capsys.readouterr().out
    assert main(["check", script, "--json"]) == 3
    assert not json.loads(capsys.readouterr().out)["ok"]
    assert main(["check", script, "--json", "--input", script]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["source"], report["ok"], report["warnings"]) == (script, True, 1)


def test_options_reach_the_doctor(script, examined):
    options = ("--batch-size", "4", "--tolerance", "0.1", "--calls", "7", "--content-type", "a/b")
    assert main(["check", script, *options, "--input", script, script]) == 0

    (wish,) = examined
    assert (wish.batch_size, wish.tolerance, wish.calls) == (4, 0.1, 7)
    assert [(each.name, each.content_type) for each in wish.samples] == [(script, "a/b")] * 2


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--batch-size", "0"], "--batch-size=0: a number of at least 1"),
        (["--tolerance", "nan"], "--tolerance=nan"),
        (["--input", "absent.json"], "--input=absent.json: No such file"),
        (["--model-file", "absent.pt"], "absent.pt does not exist"),
    ],
)
def test_unusable_options_are_refused(script, examined, capsys, options, lines):
    assert main(["check", script, *options]) == 2
    assert lines in capsys.readouterr().err
    assert examined == []


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [(InvalidModel("no archive"), 2, "no archive"), (KeyboardInterrupt(), 130, "Interrupted.")],
)
def test_failures_have_their_status(script, error, status, line, monkeypatch, capsys):
    monkeypatch.setattr(command, "examine", Mock(side_effect=error))
    assert main(["check", script]) == status
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.slow
def test_report_is_the_only_output_whatever_the_handler_prints(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import sys\n\n\nclass Loud:\n    def handle(self, data, context):\n        print('batch')\n"
        "        print('of', len(data), file=sys.stderr)\n        return ['one']\n"
    )
    for name in "ab":
        (tmp_path / name).write_text(name)
    command = [sys.executable, "-m", "modelserver", "check", "loud.py", "--input", "a", "b", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["level"] == "error"]

    assert (done.returncode, done.stderr) == (1, "")
    assert (finding["id"], finding["file"], finding["line"]) == ("wrong-count", "loud.py", 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "loud.py"]
