"""The value of a setting becomes text, as config.properties has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelserver.settings.model_defaults import ModelDefaults, ModelTable


def property_text(value: object) -> str:
    """A setting's value as it stands in a file; empty for one that is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, tuple):
        return ",".join(map(property_text, value))
    if isinstance(value, Mapping):
        return _models_text(value) if value else ""
    return str(value)


def _models_text(table: ModelTable) -> str:
    """The ``models=`` property of reference 3.4."""
    return json.dumps(
        {
            name: {v: _fallbacks(settings) for v, settings in versions.items()}
            for name, versions in table.items()
        }
    )


def _fallbacks(settings: ModelDefaults) -> dict[str, object]:
    values = {
        "minWorkers": settings.min_workers,
        "maxWorkers": settings.max_workers,
        "batchSize": settings.batch_size,
        "maxBatchDelay": settings.max_batch_delay,
        "responseTimeout": settings.response_timeout,
        "startupTimeout": settings.startup_timeout,
        "runtimeType": settings.runtime_type,
    }
    return {name: value for name, value in values.items() if value is not None}
