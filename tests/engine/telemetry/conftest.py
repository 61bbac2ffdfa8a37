import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics(hostname="h")
