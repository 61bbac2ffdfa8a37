import pytest
from tests.surface.http.wire import Wire


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
