"""Connections in memory."""

from __future__ import annotations

import pytest

from modelserver.ext.grpc.http2 import connection


@pytest.fixture(autouse=True)
def whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages of one piece are read at once, however busy the machine is."""
    monkeypatch.setattr(connection, "_TURN", 3600.0)
