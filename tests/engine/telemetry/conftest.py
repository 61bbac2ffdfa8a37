import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics


@pytest.fixture
def metrics():
    return ServerMetrics(hostname="h")
