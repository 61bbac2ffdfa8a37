"""Limits of workers as they are asked for: checked, changed, kept in snapshots, and given to the pool."""

from __future__ import annotations

import json

import pytest

from modelserver.errors import BadRequest
from modelserver.models.changes import Change
from modelserver.models.options.resolve import ModelOptions, Registration
from modelserver.models.preparation import _limits
from modelserver.models.snapshot import parse_snapshot


def test_the_pool_gets_them() -> None:
    """Sizes may be larger than numbers of other kinds."""
    limits = _limits(ModelOptions(max_worker_memory=1 << 40, max_worker_requests=7))

    assert (limits.max_worker_memory, limits.max_worker_requests) == (1 << 40, 7)


@pytest.mark.parametrize("name", ["max_worker_memory", "max_worker_requests"])
@pytest.mark.parametrize("value", [-1, 1 << 60])
def test_values_out_of_range_are_refused(name: str, value: int) -> None:
    """They are refused by name, in a registration as in a change."""
    for refused in (Registration, Change.of):
        with pytest.raises(BadRequest, match=name):
            refused(**{name: value})


def test_a_snapshot_keeps_them() -> None:
    """They are read as they are written."""
    settings = {"marName": "m.mar", "maxWorkerMemory": 1 << 33, "maxWorkerRequests": 8, "workerThreads": 2}
    (saved,) = parse_snapshot(json.dumps({"models": {"m": {"1.0": settings}}})).models

    assert (saved.registration.max_worker_memory, saved.registration.max_worker_requests) == (1 << 33, 8)
    assert saved.registration.worker_threads == 2
