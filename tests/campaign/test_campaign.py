"""The campaigns in their short form; the long one is ``python -m tests.campaign``."""

import importlib

import pytest
from tests.campaign.report import Report

SECONDS = {"soak": 8.0, "leaks": 5.0, "wire": 1.0, "system": 1.0, "many": 8.0}


def hold(name: str, seconds: float) -> None:
    """What the campaign is about holds in a short run: the report names nothing that did not.

    It counts as skipped, with the reasons, if this machine lacks what a part of it needs.
    """
    report = Report(name)
    importlib.import_module(f"tests.campaign.{name}").run(report, seconds)
    print(report)

    assert report.failures == []
    if report.skipped:
        pytest.skip("; ".join(report.skipped))
    assert report.figures


@pytest.mark.slow  # servers under load, for seconds
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SECONDS)
def test_campaign_holds(name):
    hold(name, SECONDS[name])
