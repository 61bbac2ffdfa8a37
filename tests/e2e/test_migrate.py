"""``modelserver migrate``: asks TorchServe and a real modelserver, reports, and ends what it started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.differential.torchserve import VARIABLE, missing
from tests.migrating.sites import build_site, playing, recorded

from modelserver.migrating.command import main

if TYPE_CHECKING:
    from modelserver.migrating.calls import Answer

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ.get(VARIABLE)


def migrate(folder: Path, torchserve: list[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the report."""
    config = folder / "site" / "config.properties"
    status = main([str(config), "--torchserve", *torchserve, "--out", str(folder / "out"), *flags])
    return status, json.loads((folder / "out" / "report.json").read_text("utf-8"))


def servers() -> list[psutil.Process]:
    """Those that this process has started and that still run."""
    return [child for child in psutil.Process().children(recursive=True) if "modelserver" in child.cmdline()]


def test_every_difference_from_recorded_answers_has_its_reason(tmp_path: Path) -> None:
    """Of the answers that TorchServe 0.12.0 gave for two models, those to which modelserver gives others are
    explained, but for one that was changed: it is reported as unknown, with exit status 1. What the command
    started has ended, and the report names what the installation uses and what to change.
    """
    build_site(tmp_path / "site")
    answers = recorded()
    wrong = next(
        key for key in answers if key.startswith("inference POST /predictions/plain ") and "fox" in key
    )
    changed: dict[str, Answer] = {**answers, wrong: answers[wrong].but(body=b"another answer")}
    before = servers()
    with playing(changed) as urls:
        others = ["--torchserve-management", urls["management"], "--torchserve-metrics", urls["metrics"]]
        status, report = migrate(tmp_path, [urls["inference"], *others])

    assert [each["request"]["name"] for each in report["differences"] if each["verdict"] == "unknown"] == [
        "a text to /predictions/plain"
    ]
    assert status == 1
    assert report["missing"] == []
    assert {"phrase", "v1-instances", "exposed"} <= set(report["reasons"])
    assert {part["name"]: part["state"] for part in report["usage"]["keys"]}[
        "number_of_netty_threads"
    ] == "no effect"
    assert [part["name"] for part in report["usage"]["ts_names"]] == ["ts.context.Context"]
    assert report["advice"][0]["commands"][0].startswith("echo split_instances=false >> ")
    assert report["figures"]["load"] == []
    assert report["figures"]["memory_bytes"]["modelserver"] > 1 << 20
    assert report["figures"]["start_seconds"]["torchserve"] is None
    assert servers() == before


@pytest.mark.skipif(missing(ENVIRONMENT) is not None, reason=missing(ENVIRONMENT) or "")
@pytest.mark.timeout(400)
def test_the_real_torchserve_is_started_and_compared(tmp_path: Path) -> None:
    """TorchServe is started beside by its command, all differences are explained, both are measured."""
    build_site(tmp_path / "site")
    program = str(Path(ENVIRONMENT or "").resolve() / "bin" / "torchserve")
    status, report = migrate(tmp_path, [program], "--seconds", "0.5")

    assert [each["request"]["name"] for each in report["differences"] if each["verdict"] == "unknown"] == []
    assert status == 0
    assert {each["server"] for each in report["figures"]["load"]} == {"torchserve", "modelserver"}
    assert report["figures"]["start_seconds"]["torchserve"] > 0
    assert report["machine"]["TorchServe"] == "0.12.0"
