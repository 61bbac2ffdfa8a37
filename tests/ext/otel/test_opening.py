import subprocess
import sys
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import ConfigError
from modelserver.ext.otel.extension import extend
from modelserver.ext.otel.opening import OpenTelemetry, is_enabled
from modelserver.models.settings.settings import Settings


def set_environment(monkeypatch, **variables):
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_off_imports_nothing():
    """Neither the server nor a worker imports OpenTelemetry unless it is on."""
    code = (
        "import sys, modelserver.run.server, modelserver.run.listeners, modelserver.ext.grpc.server, "
        "modelserver.engine.worker.runtime, modelserver.engine.worker.asynchronous\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'modelserver.ext.otel'))])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert completed.stdout == "[]\n"


async def test_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "modelserver.ext.otel.opening")
    monkeypatch.delitem(sys.modules, "modelserver.ext.otel.sdk")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigError, match=r"otel=all: .*; pip install 'modelserver\[otel\]'"):
        await extend(SimpleNamespace(settings=Settings(otel="all")))


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_what_the_environment_turns_off(monkeypatch, variables, is_on):
    set_environment(monkeypatch, **variables)
    assert is_enabled("traces") is is_on
    assert (OpenTelemetry(Settings(otel="traces")).start(lambda *_: None) is not None) is is_on


async def test_signals_are_off_by_default():
    traces, metrics = OpenTelemetry(Settings(otel="traces")), OpenTelemetry(Settings(otel="metrics"))
    await traces.send_metrics(ServerMetrics())

    assert metrics.start(lambda *_: None) is None
    await traces.close()
    await metrics.close()
