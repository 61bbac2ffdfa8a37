"""What tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.ext.payloads.sinks import SinkServer, sink_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sink() -> Iterator[SinkServer]:
    """A sink that takes everything."""
    with sink_server() as server:
        yield server
