"""Where measured values go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from modelserver_handlers.metrics import emission as emissions
from modelserver_handlers.metrics.cache import MetricsCache
from modelserver_handlers.metrics.values import Dimension

if TYPE_CHECKING:
    import pytest


def test_outside_of_workers_values_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the line that TorchServe's workers print."""
    monkeypatch.setattr(emissions, "_sink", emissions.log_emission)
    caplog.set_level(logging.INFO)
    MetricsCache("m").add_time("t", 1.5, dimensions=[Dimension("a", "b")])

    (record,) = caplog.records
    start = "[METRICS]t.Milliseconds:1.5|#a:b,ModelName:m,Level:Model|#type:GAUGE|#hostname:"
    assert record.getMessage().startswith(start)
