"""Handlers' metrics that no ``metrics_config`` lists, in both sets of defaults (reference 15.4)."""

from __future__ import annotations

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics

DIMENSIONS = (("ModelName", "m"), ("Level", "Model"))


def shown(metrics: ServerMetrics) -> set[str]:
    """Which of three handlers' metrics there are after each was emitted."""
    model = metrics.model("m", "1.0")
    for name in ("HandlerTime", "PredictionTime", "Words"):
        model.model_metric(name, 5.0, "ms", "gauge", DIMENSIONS)
    text = metrics.render().decode()
    return {name for name in ("HandlerTime", "PredictionTime", "Words") if f'\n{name}{{ModelName="m"' in text}


@pytest.mark.parametrize(
    ("known_only", "auto_detect", "words"),
    [(False, False, True), (True, False, False), (True, True, True)],
    ids=["ours", "TorchServe's", "TorchServe's with model_metrics_auto_detect"],
)
def test_metrics_beyond_torchserves_list(known_only: bool, auto_detect: bool, words: bool) -> None:
    """Ours are all kept; TorchServe's are those of its own list, and others where they are to be detected."""
    found = shown(ServerMetrics(as_torchserve=known_only, auto_detect=auto_detect))

    assert found == {"HandlerTime", "PredictionTime"} | ({"Words"} if words else set())


@pytest.mark.parametrize("known_only", [False, True])
def test_metrics_beyond_the_list_in_the_log(known_only: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The same holds for the lines of the log mode."""
    caplog.set_level("INFO", logger="modelserver.model_metrics")
    shown(ServerMetrics(mode="log", as_torchserve=known_only))
    names = [record.getMessage().partition(".")[0] for record in caplog.records]

    assert names == ["HandlerTime", "PredictionTime", *([] if known_only else ["Words"])]
