"""What all tests share."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """What a shell runs in the background ignores SIGINT, and so would the commands that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written to the cache of the user who runs the tests; it is one for all, as it would be."""
    before = os.environ.get("MODELSERVER_CACHE")
    os.environ["MODELSERVER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["MODELSERVER_CACHE"]
    else:
        os.environ["MODELSERVER_CACHE"] = before
