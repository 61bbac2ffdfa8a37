"""How model-config.yaml says what may be done to a network."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import ModelOptions


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", ModelOptions()),
        ("optimize: off", ModelOptions(optimize=False)),
        ("optimize: auto", ModelOptions(optimize_asked=True)),
        ("handler: {optimize: 'off', precision: bf16}", ModelOptions(optimize=False, precision="bf16")),
        ("precision: bfloat16", ModelOptions(precision="bf16")),
        ("precision: bf16\nhandler: {precision: fp32}", ModelOptions(tf32=False)),
        ("precision: tf32", ModelOptions(tf32=True)),
        (
            "handler: {precision: int8, calibration: samples/*.jpg}",
            ModelOptions(precision="int8", calibration="samples/*.jpg"),
        ),
        ("handler: {warmup: false}", ModelOptions(warmup=False)),
        ("warmup: {shape: [3, 32, 32]}", ModelOptions(shape=(3, 32, 32))),
        ("handler: a name", ModelOptions()),
    ],
)
def test_read(text: str, options: ModelOptions) -> None:
    """The keys count at the top and under ``handler``, where they win; a bare ``off`` is understood."""
    assert ModelOptions.parse(yaml.safe_load(text) or {}) == options


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"optimize": "fast"}, "optimize must be one of auto, on, off, got 'fast'"),
        ({"handler": {"precision": "int4"}}, "precision must be one of fp32, tf32, bf16, int8, float32"),
        ({"handler": {"calibration": 3}}, "calibration must be the name of a file or folder"),
        ({"handler": {"calibration": ""}}, "calibration must be the name of a file or folder"),
        ({"handler": {"calibration": ["a"]}}, "calibration must be the name of a file or folder"),
        ({"warmup": {"shape": [3, 0]}}, "warmup must be"),
        ({"warmup": {"sizes": [3]}}, "warmup must be"),
        ({"warmup": 3}, "warmup must be"),
    ],
)
def test_malformed(document: dict[str, Any], message: str) -> None:
    """Another value stops the load, with what is allowed."""
    with pytest.raises(ModelLoadError, match=message):
        ModelOptions.parse(document)
