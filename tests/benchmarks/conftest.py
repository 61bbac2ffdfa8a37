"""Benchmarks that run within the tests leave torch as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Benchmarks set torch's threads, which are the whole process's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
