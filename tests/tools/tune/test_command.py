import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from tests.tools.tune.conftest import A_MS, B_MS, LIMIT_MS
from tests.waiting import gone

from modelserver.__main__ import main
from modelserver.tools.tune.command import CONFIG, REPORT, RESULTS, build_parser, check_out
from modelserver.tools.tune.config_file import FIRST_LINE
from modelserver.tools.tune.errors import TuningError
from modelserver.tools.tune.source import open_source

ROOT = Path(__file__).parents[3]


def tune(*arguments):
    return main(["tune", *arguments])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--goal", "p95<=3ms"], "--goal=p95<=3ms: p50, p90 or p99"),
        (["--goal", "max-throughput", "--time-budget", "0"], "--time-budget=0: a number of at least 1"),
        (["--goal", "max-throughput", "--clients", "-1"], "--clients=-1: a number of at least 1"),
        (["--goal", "max-throughput", "--model-store", "nowhere"], "--model-store directory not found"),
        (["--goal", "max-throughput", "--ts-config", "nowhere"], "--ts-config file not found"),
        (["--goal", "max-throughput", "--content-type", "a\r\nb: c"], "--content-type="),
        (["--goal", "max-throughput", "--content-type", "téxt/plain"], "--content-type="),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(flags, message, work, capsys):
    """With status 2, before anything is started."""
    assert tune("sleeper.mar", "--input", "in.json", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_model_that_is_not_there_is_refused(work, capsys):
    assert tune("nowhere.mar", "--input", "in.json", "--goal", "max-throughput") == 1
    assert "Model not found at: nowhere.mar" in capsys.readouterr().err


def test_a_configuration_of_someone_else_is_not_overwritten(tmp_path):
    config = tmp_path / CONFIG
    config.write_text("batchSize: 4\n")
    with pytest.raises(TuningError, match="--force"):
        check_out(tmp_path, force=False)
    check_out(tmp_path, force=True)
    config.write_text(f"{FIRST_LINE}\nbatchSize: 4\n")
    check_out(tmp_path, force=False)

    with pytest.raises(TuningError, match="a directory is needed"):
        check_out(config, force=False)


def test_the_documented_flags_exist():
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--config-file", "--model-name", "--version"}
    known = {flag for action in build_parser()._actions for flag in action.option_strings if flag[:2] == "--"}

    assert documented - {"--handler", "--serialized-file"} == known - {"--help"}


def test_starting_the_server_does_not_load_the_tuner():
    """The command imports it for ``tune`` only."""
    code = "import sys, modelserver.run.cli; print([m for m in sys.modules if 'modelserver.tools.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.alone
@pytest.mark.slow
def test_a_known_cost_leads_to_a_provable_choice(work, capsys):
    flags = ["--max-batch-size", "32", "--max-workers", "1", "--time-budget", "8"]
    status = tune("sleeper.mar", "--input", "in.json", "--goal", f"p90<={LIMIT_MS}ms", *flags)
    out = capsys.readouterr().out
    folder = work / "sleeper-tuning"
    results = json.loads((folder / RESULTS).read_text())
    config = yaml.safe_load((folder / CONFIG).read_text())

    assert status == 0, out
    assert 1 < config["batchSize"] <= (LIMIT_MS - A_MS) / B_MS, out
    assert results["choice"]["figure"]["p90_ms"] <= LIMIT_MS
    assert results["gain"] > 1.3
    line = results["cost"]["line"]
    assert 0.7 < line["b_ms"] / B_MS < 1.5
    assert line["r2"] > 0.8
    assert config["responseTimeout"] == 60
    assert "<svg" in (folder / REPORT).read_text()
    packed = open_source(str(folder / "sleeper.mar"), None, work / "packed")
    assert packed.config_text == (folder / CONFIG).read_text()
    assert f"cp {folder.relative_to(work)}/sleeper.mar MODEL_STORE" in out
    assert [path for path in folder.iterdir() if path.suffix == ".part"] == []


@pytest.mark.slow
def test_a_goal_out_of_reach_writes_nothing(work, capsys):
    """The status is 1, and the report has the best point. --force writes the configuration, with a remark."""
    flags = ["--goal", f"p50<={A_MS // 2}ms", "--max-batch-size", "2", "--max-workers", "1"]
    flags += ["--time-budget", "1"]
    assert tune("sleeper.mar", "--input", "in.json", *flags) == 1
    assert "was not met. The best that was reached: batch 1, " in capsys.readouterr().out
    assert "not met" in (work / "sleeper-tuning" / "report.html").read_text()
    assert not (work / "sleeper-tuning" / CONFIG).exists()

    assert tune("sleeper.mar", "--input", "in.json", *flags, "--force", "--out", "best") == 1
    assert "NOT MET" in (work / "best" / CONFIG).read_text()


@pytest.mark.slow  # starts a server
def test_an_interruption_leaves_nothing(work):
    temp = work / "tmp"
    temp.mkdir()
    roots = os.pathsep.join(str(ROOT / name) for name in ("app", "handlers"))
    command = [sys.executable, "-u", "-m", "modelserver", "tune", "sleeper.mar", "--input", "in.json"]
    with subprocess.Popen(
        [*command, "--goal", "max-throughput"],
        env={**os.environ, "TMPDIR": str(temp), "PYTHONPATH": roots},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stdout:
            if "1 client:" in line:
                break
        family = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGTERM)
        message = process.stderr.read()
        process.stdout.read()
    assert len(family) >= 2
    assert process.returncode == 130
    assert message == "Interrupted: the server was stopped, nothing was written.\n"
    asyncio.run(gone(*family))
    assert list(temp.iterdir()) == []
    assert not (work / "sleeper-tuning").exists()
