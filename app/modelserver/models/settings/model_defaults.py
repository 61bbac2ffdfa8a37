"""The ``models=`` property: fallbacks by model name and version; it does not load models (reference 3.4)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_WHOLE = re.compile(r"[0-9]{1,15}")
RUNTIMES = ("python", "python3", "LSP")
# Keys that snapshots have too.
_OTHERS = ("runtimeType", "marName", "defaultVersion")


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Fallbacks of one model version, None where not given; the delay is in ms, the timeouts in s."""

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    runtime_type: str | None = None


ModelTable = Mapping[str, Mapping[str, ModelDefaults]]
"""Model name, then version."""

_NUMBERS = {
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "batchSize": "batch_size",
    "maxBatchDelay": "max_batch_delay",
    "responseTimeout": "response_timeout",
    "startupTimeout": "startup_timeout",
}


def parse_models(text: str) -> ModelTable:
    """Parses the property; numbers of 0 or less and values of the wrong type count as not given.

    Raises ValueError unless it is JSON of names, versions and settings.
    """
    return {
        name: {version: _defaults(settings) for version, settings in versions.items()}
        for name, versions in _document(text).items()
    }


def models_text(table: ModelTable) -> str:
    """The property as text (reference 3.4)."""
    document = {
        name: {version: _as_properties(settings) for version, settings in versions.items()}
        for name, versions in table.items()
    }
    return json.dumps(document)


def _as_properties(settings: ModelDefaults) -> dict[str, object]:
    fields = {**_NUMBERS, "runtimeType": "runtime_type"}
    values = {key: getattr(settings, field) for key, field in fields.items()}
    return {key: value for key, value in values.items() if value is not None}


def ignored_values(text: str) -> list[str]:
    """A warning for each value and unknown key that ``parse_models`` ignored; the text must be valid."""
    return [
        f"models={name} {version} {key}={json.dumps(value)} is ignored: {reason}"
        for name, versions in _document(text).items()
        for version, settings in versions.items()
        for key, value in settings.items()
        if (reason := _why_ignored(key, value))
    ]


def _why_ignored(key: str, value: object) -> str:
    if key in _NUMBERS:
        return "" if _number(value) else "a whole number above 0 is needed"
    return "" if key in _OTHERS else f"it is not a known key{meant(key, _NUMBERS)}"


def meant(name: str, known: Collection[str]) -> str:
    """``; did you mean X?``, with the known name that is very similar; nothing if there is none."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _document(text: str) -> dict[str, dict[str, dict[str, object]]]:
    return {
        name: {
            version: _object(settings, f"version {version} of {name}")
            for version, settings in _object(versions, name).items()
        }
        for name, versions in _object(json.loads(text), "the whole").items()
    }


def _object(value: object, what: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{what} is not an object")


def _defaults(settings: Mapping[str, object]) -> ModelDefaults:
    runtime: Any = settings.get("runtimeType")
    values: dict[str, Any] = {field: _number(settings.get(key)) for key, field in _NUMBERS.items()}
    return ModelDefaults(**values, runtime_type=runtime if runtime in RUNTIMES else None)


def _number(value: object) -> int | None:
    """A whole number above 0, also when written as a string, as Gson reads it."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
