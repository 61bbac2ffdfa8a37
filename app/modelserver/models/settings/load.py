"""Loads the settings at startup from flags, environment, file and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from modelserver.errors import ConfigError
from modelserver.models.settings.checks import check
from modelserver.models.settings.key import BATCHER, TLS, TORCHSERVE, Key, Kind, property_text
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.remarks import remark_on_variables, remarks
from modelserver.models.settings.serving import ANY_URL
from modelserver.models.settings.settings import Settings
from modelserver.models.settings.sources import DEFAULT, SettingText, find_config_file, gather
from modelserver.models.settings.values import convert

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LONGEST_VALUE = 200


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
        f"{key.name} = {value} ({source})"
        for key, value, source in settings_as_text(loaded.settings, loaded.sources)
    ]
    return "\n".join(lines)


def settings_as_text(settings: Settings, sources: Mapping[str, str]) -> list[tuple[Key, str, str]]:
    """Each setting with its value as one line of text, secrets masked, and its source."""
    return [
        (key, _masked(key, getattr(settings, name)), _source(settings, sources[name], key))
        for name, key in KEYS.items()
    ]


def _source(settings: Settings, source: str, key: Key) -> str:
    is_torchserve = source == DEFAULT and settings.as_torchserve and key.torchserve is not None
    return "default of TorchServe" if is_torchserve else source


def _value(key: Key, item: SettingText, cwd: Path) -> object:
    try:
        return convert(key, item.text, cwd)
    except ValueError as error:
        if item.is_flag and key.kind in (Kind.DIRECTORY, Kind.STORE):
            raise ConfigError(f"{key.flag} directory not found: {_one_line(item.text)}") from None
        reason = _one_line(str(error)) + (f" ({item.source}, line {item.line})" if item.line else "")
        raise ConfigError(f"Invalid configuration: {key.name}={_masked(key, item.text)}: {reason}") from None


def _compose(values: Mapping[str, object]) -> Settings:
    chosen = {**values, "sets_allowed_urls": values.get("allowed_urls", ANY_URL) != ANY_URL}
    store = chosen.get("model_store")
    if chosen.get("workflow_store") is None and not isinstance(store, str):
        chosen["workflow_store"] = store
    return Settings(**cast("dict[str, Any]", chosen))


def _masked(key: Key, value: object) -> str:
    if key.secret:
        return "********"
    return _one_line(property_text(value))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_VALUE else line[: _LONGEST_VALUE - 1] + "…"


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
    is_used = {TLS: settings.uses_tls, BATCHER: settings.enable_batcher}
    return key.category != "N" and is_used.get(key.group, True)
