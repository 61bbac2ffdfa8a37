"""What all tests share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


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
