import pytest

from modelserver.ext.grpc.http2 import connection


@pytest.fixture(autouse=True)
def whole_turns(monkeypatch):
    """All messages of one piece are read at once, however busy the machine is."""
    monkeypatch.setattr(connection, "_TURN", 3600.0)
