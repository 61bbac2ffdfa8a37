import pytest
from tests.surface.http.wire import Wire

from modelserver.surface.http import protocol


@pytest.fixture(autouse=True)
def whole_turns(monkeypatch):
    """All of one piece is read at once, however busy the machine is."""
    monkeypatch.setattr(protocol, "_TURN", 3600.0)


@pytest.fixture
async def wire():
    """A connection whose endpoint responds at once, with the request's body."""
    return Wire()


@pytest.fixture
async def busy():
    """A connection whose endpoint leaves the response to the test."""
    wire = Wire()
    wire.hot.at_once = False
    return wire
