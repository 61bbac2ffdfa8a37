"""Warnings about settings that do not do what their author may expect."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from modelserver.settings.key import BATCHER, Kind
from modelserver.settings.keys import KEYS, NOT_YET
from modelserver.settings.model_defaults import ignored_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelserver.settings.sources import Given

_SWITCHES = (Kind.BOOLEAN, Kind.CHOICE)


def remarks(
    given: Mapping[str, Given],
    values: Mapping[str, object],
    defaults: Mapping[str, object],
    unusable: Mapping[str, str],
) -> Iterator[str]:
    """Warnings; ``values`` and ``defaults`` are the converted values of known keys.

    ``unusable`` are the errors of values that could not be converted, but have no effect.
    """
    for name, (text, key) in ((name, (item.text, KEYS.get(name))) for name, item in given.items()):
        if key is None:
            yield _unknown(name)
            continue
        if name in unusable:
            yield f"{unusable[name]}; it is ignored, {name} has no effect here"
            continue
        if key.kind is Kind.BOOLEAN and text.strip().lower() not in {"true", "false", ""}:
            yield f"{name}={text} counts as false: only the word true is true"
        if name == "models":
            yield from ignored_values(text.strip() or "{}")
        if values[name] is None or (key.kind in _SWITCHES and values[name] == defaults[name]):
            continue
        if name in NOT_YET:
            yield f"{name} has no effect yet"
        elif key.category == "N":
            yield f"{name} has no effect: it is for TorchServe's Java server only"
        if key.group == BATCHER and not values.get("enable_batcher"):
            yield f"{name} has no effect without enable_batcher"


def _unknown(name: str) -> str:
    close = get_close_matches(name, KEYS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name} is not a known setting and is ignored{hint}"
