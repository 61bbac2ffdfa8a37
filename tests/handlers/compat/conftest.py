"""What tests of this folder share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from modelserver_handlers.compat import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ts_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``ts`` can be imported, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(PATH)
    yield
    for name in [name for name in sys.modules if name == "ts" or name.startswith("ts.")]:
        del sys.modules[name]
