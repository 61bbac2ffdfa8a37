"""Warnings about settings that do not do what their author may expect."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from modelserver.models.settings.key import BATCHER, Kind
from modelserver.models.settings.keys import KEYS, NOT_YET
from modelserver.models.settings.model_defaults import ignored_values
from modelserver.models.settings.sources import is_true

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelserver.models.settings.sources import SettingText

_SWITCHES = (Kind.BOOLEAN, Kind.CHOICE)


def remarks(
    texts: Mapping[str, SettingText],
    values: Mapping[str, object],
    defaults: Mapping[str, object],
    unusable: Mapping[str, str],
) -> Iterator[str]:
    """Warnings; ``values`` and ``defaults`` are the converted values of known keys.

    ``unusable`` are the errors of values that could not be converted, but have no effect.
    """
    for name, (text, key) in ((name, (item.text, KEYS.get(name))) for name, item in texts.items()):
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


# Read elsewhere, whatever the file says.
_ALWAYS_READ = {"TS_CONFIG_FILE", "TS_COMPAT_DEFAULTS", "TS_OPEN_INFERENCE_PROTOCOL"}


def remark_on_variables(texts: Mapping[str, SettingText], environ: Mapping[str, str]) -> Iterator[str]:
    """A line that names the variables ``TS_*`` that are not read, and why; none if all are."""
    known = {key.env: name for name, key in KEYS.items() if key.env is not None}
    unread, reasons = [], []
    for variable in sorted(name for name in environ if name.startswith("TS_") and name not in _ALWAYS_READ):
        name = known.get(variable)
        if name is None:
            reasons.append(_why_unknown(variable, known))
        elif name not in texts or texts[name].source != f"environment {variable}":
            unread.append(variable)
    if unread and is_true(texts.get("enable_envvars_config")):
        reasons.insert(0, f"{', '.join(unread)} (the configuration file lacks use_env_allowed_urls=true)")
    elif unread:
        reasons.insert(0, f"{', '.join(unread)} (the configuration file lacks enable_envvars_config=true)")
    if reasons:
        yield f"environment variables that are ignored: {'; '.join(reasons)}"


def _why_unknown(variable: str, known: Mapping[str, str]) -> str:
    if variable.removeprefix("TS_").lower() in KEYS:
        return f"{variable} (only the configuration file sets it)"
    close = get_close_matches(variable[3:], [name[3:] for name in known if name.startswith("TS_")], n=1)
    return f"{variable} (no such setting{f'; did you mean TS_{close[0]}?' if close else ''})"


def _unknown(name: str) -> str:
    close = get_close_matches(name, KEYS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name} is not a known setting and is ignored{hint}"
