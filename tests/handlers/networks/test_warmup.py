"""The first batches."""

from __future__ import annotations

import pytest

from modelserver_handlers.networks import warmup


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1]), (2, [2, 1]), (8, [8, 1, 4, 2]), (12, [12, 1, 8, 4, 2])]
)
def test_sizes(batch_size: int, sizes: list[int]) -> None:
    """The largest and the smallest first, then the powers of two between."""
    assert warmup.sizes(batch_size) == sizes


def test_what_takes_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches and lone rows always run; after that only while it is quick."""
    seen: list[int] = []
    monkeypatch.setattr(warmup, "LONG", 0.0)

    assert warmup.warm_up(lambda rows: seen.append(len(rows)), (2,), 8)
    assert seen == [8, 1]
