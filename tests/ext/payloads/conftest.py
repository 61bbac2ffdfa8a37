import pytest
from tests.ext.payloads.sinks import sink_server


@pytest.fixture
def sink():
    with sink_server() as server:
        yield server
