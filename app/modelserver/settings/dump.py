"""Settings written as the properties that they can be read from again, for snapshots (reference 17)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from modelserver.settings.keys import KEYS
from modelserver.settings.sources import DEFAULT

if TYPE_CHECKING:
    from modelserver.settings.model_defaults import ModelDefaults, ModelTable
    from modelserver.settings.settings import LoadedSettings

# The state has its own place, and the version that wrote a file is nothing to set.
_LEFT_OUT = ("model_snapshot", "version")


def given_properties(loaded: LoadedSettings) -> dict[str, str]:
    """The text of every key that somebody set, wherever; without secrets, which no snapshot may tell."""
    return {
        name: property_text(getattr(loaded.settings, name))
        for name, key in KEYS.items()
        if loaded.sources[name] != DEFAULT and not key.secret and name not in _LEFT_OUT
    }


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
