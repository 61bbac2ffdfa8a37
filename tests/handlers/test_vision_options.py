"""The options of ``handler`` that say how pictures get to the network."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import VisionOptions


def test_defaults() -> None:
    """Nothing that changes numbers is on unless asked for."""
    assert VisionOptions.parse({"topk": 3}) == VisionOptions("cpu", fast_decode=False, cuda_graphs=False)


def test_all_of_them() -> None:
    """Each key sets its option."""
    settings = {"decode": "nvjpeg", "fast_decode": True, "cuda_graphs": True}

    assert VisionOptions.parse(settings) == VisionOptions("nvjpeg", fast_decode=True, cuda_graphs=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode": "gpu"}, "decode must be cpu or nvjpeg"),
        ({"decode": None}, "decode must be cpu or nvjpeg"),
        ({"fast_decode": "yes"}, "fast_decode must be true or false"),
        ({"cuda_graphs": 1}, "cuda_graphs must be true or false"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str) -> None:
    """Anything else stops the load, and the message says what is allowed."""
    with pytest.raises(ModelLoadError, match=message):
        VisionOptions.parse(settings)
