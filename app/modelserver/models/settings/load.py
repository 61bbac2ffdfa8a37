"""Loads the settings at startup from flags, environment, file and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from modelserver.errors import ConfigError
from modelserver.models.settings.checks import check
from modelserver.models.settings.key import DEFAULT, TORCHSERVE, Key, Kind, one_line, property_text
from modelserver.models.settings.model_defaults import ignored_values, meant
from modelserver.models.settings.settings import ANY_URL, BATCHER, KEYS, NOT_YET, TLS, Settings
from modelserver.models.settings.sources import SettingText, find_config_file, gather, is_true
from modelserver.models.settings.values import convert

# Warnings about settings that do not do what their author may expect.

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
            yield f"{name} is not a known setting and is ignored{meant(name, KEYS)}"
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
        elif key.is_for_java:
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


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and where they came from.

    ``sources`` maps every key to ``default``, the path of the file, ``flag --x`` or ``environment TS_X``;
    ``warnings`` are lines for the log.
    """

    settings: Settings
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    config_file: Path | None


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], cwd: Path) -> LoadedSettings:
    """Settings from flags (by key name; None and False are "not given"), environment and config.properties.

    Flags that are not settings, except ``ts_config``, are ignored. Relative paths are resolved against
    ``cwd``. Raises ConfigError with one line that names the key, its value and what is allowed.
    """
    config_file = find_config_file(flags, environ, cwd)
    texts = gather(flags, environ, config_file)
    values: dict[str, object] = {}
    unusable: dict[str, ConfigError] = {}
    for name, item in texts.items():
        if name in KEYS:
            try:
                values[name] = _value(KEYS[name], item, cwd)
            except ConfigError as error:
                unusable[name] = error
    torchserve_values: dict[str, object] = {}
    if values.get("compat_defaults") == TORCHSERVE:
        other = {name: key.torchserve for name, key in KEYS.items() if key.torchserve is not None}
        torchserve_values = {name: convert(KEYS[name], text, cwd) for name, text in other.items()}
    settings = _compose({**torchserve_values, **values})
    for name, problem in unusable.items():
        if _has_effect(KEYS[name], settings):
            raise problem
    try:
        check(settings)
    except ConfigError as error:
        raise ConfigError(" ".join(str(error).splitlines())) from error
    ignored = {name: str(problem) for name, problem in unusable.items()}
    return LoadedSettings(
        settings,
        {name: texts[name].source if name in texts else DEFAULT for name in KEYS},
        (*remarks(texts, values, _DEFAULTS, ignored), *remark_on_variables(texts, environ)),
        config_file,
    )


def explain(loaded: LoadedSettings) -> str:
    """A line ``key = value (source)`` per setting, secrets masked."""
    lines = [f"config file: {loaded.config_file or 'none'}"]
    lines += [
        f"{key.name} = {value} ({source})" for key, value, source in loaded.settings.as_text(loaded.sources)
    ]
    return "\n".join(lines)


def _value(key: Key, item: SettingText, cwd: Path) -> object:
    try:
        return convert(key, item.text, cwd)
    except ValueError as error:
        if item.source.startswith("flag ") and key.kind is Kind.STORE:
            raise ConfigError(f"{key.flag} directory not found: {one_line(item.text)}") from None
        reason = one_line(str(error)) + (f" ({item.source}, line {item.line})" if item.line else "")
        raise ConfigError(f"Invalid configuration: {key.name}={key.masked(item.text)}: {reason}") from None


def _compose(values: Mapping[str, object]) -> Settings:
    chosen = {**values, "sets_allowed_urls": values.get("allowed_urls", ANY_URL) != ANY_URL}
    store = chosen.get("model_store")
    if chosen.get("workflow_store") is None and not isinstance(store, str):
        chosen["workflow_store"] = store
    return Settings(**cast("dict[str, Any]", chosen))


_DEFAULTS = {spec.name: getattr(Settings(), spec.name) for spec in fields(Settings)}


# The state is saved separately, and the version of a snapshot is not a setting.
_LEFT_OUT = ("model_snapshot", "version")


def set_properties(loaded: LoadedSettings) -> dict[str, str]:
    """The text of every key that was set, for snapshots; without secrets."""
    return {
        name: property_text(getattr(loaded.settings, name))
        for name, key in KEYS.items()
        if loaded.sources[name] != DEFAULT and not key.secret and name not in _LEFT_OUT
    }


def _has_effect(key: Key, settings: Settings) -> bool:
    """Whether an invalid value matters: not for keys of the Java server, of TLS or a batcher if not used."""
    is_used: dict[str, bool] = {TLS: settings.uses_tls, BATCHER: settings.enable_batcher}
    return not key.is_for_java and is_used.get(key.group, True)
