"""The machine as metrics of the old kind."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from modelserver_handlers.compat import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ts_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``ts`` can be imported, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(PATH)
    yield
    for name in [name for name in sys.modules if name == "ts" or name.startswith("ts.")]:
        del sys.modules[name]


@pytest.mark.usefixtures("ts_names")
def test_the_machine_is_measured_by_the_old_module(caplog: pytest.LogCaptureFixture) -> None:
    """``collect_all`` calls what a module has to measure and logs a line for each value."""
    module = importlib.import_module("ts.metrics.system_metrics")
    caplog.set_level("INFO")
    module.collect_all(module, 0)

    names = {line.partition(".")[0] for line in caplog.messages if line}
    module.system_metrics.clear()
    assert names == {
        *("CPUUtilization", "MemoryUsed", "MemoryAvailable", "MemoryUtilization"),
        *("DiskUsage", "DiskUtilization", "DiskAvailable"),
    }
