"""What is light enough for the event loop."""

from __future__ import annotations

import time

import pytest

from modelserver.engine.tensors import weight


@pytest.mark.parametrize("mark", [b",", b"[", b"{"])
def test_elements_make_json_heavy(mark: bytes) -> None:
    """Many elements, however they begin, are heavy; a few in a long text are not."""
    assert weight.is_heavy_json(mark * 20_000)
    assert not weight.is_heavy_json(mark * 4_000 + b"a" * 100_000)


def test_small_bodies_are_light() -> None:
    """Nobody looks into a small body; a very long text is heavy whatever it is."""
    assert not weight.is_heavy_json(b"," * weight.LIGHT_BYTES)
    assert weight.is_heavy_json(b"a" * (weight.LIGHT_TEXT + 1))


def test_looking_takes_no_time() -> None:
    """A heavy body is known for one by its beginning."""
    body = b"," * weight.LIGHT_TEXT
    began = time.process_time()
    for _ in range(10):
        assert weight.is_heavy_json(body)

    assert time.process_time() - began < 0.05
