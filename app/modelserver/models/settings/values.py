"""Converts the text of a setting to a value of its kind."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from modelserver.models.settings.address import Address
from modelserver.models.settings.key import Key, Kind
from modelserver.models.settings.model_defaults import parse_models

_Number = TypeVar("_Number", int, float)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_OBJECT_STORE = re.compile(r"(s3|gs|az|hf)://(?!.*\.\.)[\w.$@-]+(/[\w.@=+,~-]+)*/?", re.IGNORECASE)
_DEFAULT_PORTS = {  # (http, https), reference 3.3
    "inference_address": (80, 443),
    "management_address": (8081, 8444),
    "metrics_address": (8082, 8445),
}
# Envelopes in files from the time when KServe was KFServing.
_FORMER_CHOICES = {"kfserving": "kserve", "kfservingv2": "kservev2"}


@dataclass(frozen=True, slots=True)
class ModelToLoad:
    """An item of ``load_models``: ``[name=]url``; the name defaults to the archive's."""

    url: str
    name: str | None = None

    def __str__(self) -> str:
        return self.url if self.name is None else f"{self.name}={self.url}"


def convert(key: Key, text: str, cwd: Path) -> object:
    """The value of the text; relative paths are resolved against ``cwd``, empty text is usually None.

    Raises ValueError with a reason that fits after ``key=value:``.
    """
    content = text if key.secret else text.strip()
    if not content and key.default == "" and key.kind not in _EMPTY_IS_A_VALUE:
        return None
    return _CONVERTERS[key.kind](key, content, cwd)


def _integer(key: Key, text: str, _cwd: Path) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(_needed(key))
    return _within(key, int(text))


def _number(key: Key, text: str, _cwd: Path) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(_needed(key)) from None
    if not math.isfinite(number):
        raise ValueError(_needed(key))
    return _within(key, number)


def _choice(key: Key, text: str, _cwd: Path) -> str:
    choice = _FORMER_CHOICES.get(text.lower(), text.lower())
    if choice not in key.choices:
        raise ValueError(_needed(key))
    return choice


def _address(key: Key, text: str, _cwd: Path) -> Address:
    http_port, https_port = _DEFAULT_PORTS[key.name]
    try:
        return Address.parse(text, http_port=http_port, https_port=https_port)
    except ValueError as error:
        raise ValueError(f"{error}: {_needed(key)}") from None


def _existing(key: Key, path: Path, exists: Callable[[Path], bool]) -> Path:
    # Path's own methods raise for names that are too long.
    if not exists(path):
        raise ValueError(_needed(key))
    return path


def _store(key: Key, text: str, cwd: Path) -> Path | str:
    return text.rstrip("/") if _OBJECT_STORE.fullmatch(text) else _existing(key, cwd / text, os.path.isdir)


def _url_patterns(key: Key, text: str, _cwd: Path) -> tuple[re.Pattern[str], ...]:
    """One pattern per item, ignoring case; a URL must match one completely (reference 10.4)."""
    return tuple(_compiled(key, item.strip(), re.IGNORECASE) for item in text.split(",") if item.strip())


def _load_list(_key: Key, text: str, _cwd: Path) -> tuple[ModelToLoad, ...]:
    if text.lower() == "standalone":
        return ()
    return tuple(item for item in map(_model_to_load, text.split(",")) if item.url)


def _model_to_load(text: str) -> ModelToLoad:
    name, equals, url = text.partition("=")
    return ModelToLoad(url.strip(), name.strip() or None) if equals else ModelToLoad(name.strip())


def _json(key: Key, text: str, _cwd: Path) -> str:
    """The text itself, after checking that it is a JSON object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_needed(key)} ({error})") from None
    if isinstance(document, dict):
        return text
    raise ValueError(_needed(key))


def _models(key: Key, text: str, _cwd: Path) -> object:
    try:
        return parse_models(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_needed(key)} ({error})") from None


def _needed(key: Key) -> str:
    return f"{key.allowed} is needed"


def _within(key: Key, number: _Number) -> _Number:
    too_small = key.minimum is not None and number < key.minimum
    too_large = key.maximum is not None and number > key.maximum
    if too_small or too_large:
        raise ValueError(_needed(key))
    return number


def _compiled(key: Key, pattern: str, flags: int = 0) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{_needed(key)} ({error})") from None


_EMPTY_IS_A_VALUE = (Kind.LOAD_LIST, Kind.MODELS, Kind.URL_PATTERNS)
_CONVERTERS: dict[Kind, Callable[[Key, str, Path], object]] = {
    Kind.BOOLEAN: lambda _, text, __: text.lower() == "true",
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.TEXT: lambda _, text, __: text,
    Kind.CHOICE: _choice,
    Kind.COUNT: lambda key, text, cwd: "auto" if text.lower() == "auto" else _integer(key, text, cwd),
    Kind.ADDRESS: _address,
    Kind.PATH: lambda _, text, cwd: cwd / text,
    Kind.FILE: lambda key, text, cwd: _existing(key, cwd / text, os.path.isfile),
    Kind.STORE: _store,
    Kind.REGEX: lambda key, text, _: _compiled(key, text),
    Kind.URL_PATTERNS: _url_patterns,
    Kind.LOAD_LIST: _load_list,
    Kind.JSON: _json,
    Kind.MODELS: _models,
}
