from types import SimpleNamespace

import httpx
import pytest
from tests.ext.console.doubles import Hot

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import ModelNotFound
from modelserver.ext.console.console import Console
from modelserver.ext.console.logs.ring import LogRing
from modelserver.ext.console.minutes import Minutes
from modelserver.models.settings.settings import KEYS, Settings
from modelserver.run.listeners import check_of_pages
from modelserver.surface.http.edge import Edge


def absent(name: str, _: str) -> None:
    raise ModelNotFound.named(name)


@pytest.fixture
def hot():
    return Hot()


@pytest.fixture
def console(hot):
    """One on loopback, without tokens and models."""
    sources = {**dict.fromkeys(KEYS, "default"), "job_queue_size": "flag --x"}
    registry = SimpleNamespace(versions=list, get=absent, builder=SimpleNamespace(sources=sources))
    settings = Settings(job_queue_size=7, keystore_pass="swordfish")
    services = SimpleNamespace(registry=registry, settings=settings, tokens=None, metrics=ServerMetrics())
    made = Console(SimpleNamespace(services=services, unwatched=hot), LogRing(), Minutes(registry))
    yield made
    made.close()


@pytest.fixture
def client(console):
    """Sends requests to the console as a listener would."""
    settings = Settings()
    check = check_of_pages(settings.management_address, settings)
    transport = httpx.ASGITransport(Edge(console, lambda *_: None, 1000, check=check))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8081")
