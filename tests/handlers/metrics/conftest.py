import pytest

from modelserver_handlers.metrics import cache as emissions
from modelserver_handlers.metrics.cache import MetricsCache


@pytest.fixture
def seen(monkeypatch):
    result = []
    monkeypatch.setattr(emissions, "_sink", result.append)
    return result


@pytest.fixture
def cache(seen):
    """The cache of a model named ``m``, with two requests in its batch."""
    made = MetricsCache("m")
    made.set_request_ids({0: "id-0", 1: "id-1"})
    return made
