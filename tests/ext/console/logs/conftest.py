import logging
from types import SimpleNamespace

import pytest

from modelserver.ext.console.logs.ring import LogRing


@pytest.fixture
def ring():
    return LogRing()


@pytest.fixture
def log(ring):
    """Loggers of the server, of workers and of answers that only the ring listens to."""
    made = {}
    for name in ("server", "model", "access", "metrics"):
        made[name] = logging.Logger(f"modelserver.{name}")  # noqa: LOG001 - of this test only
        made[name].addHandler(ring)
    return SimpleNamespace(**made)
