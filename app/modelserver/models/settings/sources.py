"""Collects the texts of settings: environment over flags over file over default (reference 2.4)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelserver.errors import ConfigError
from modelserver.models.settings.key import TORCHSERVE
from modelserver.models.settings.properties import line_numbers, parse, substitute
from modelserver.models.settings.settings import KEYS

STARTED_AS: Final = "MODELSERVER_STARTED_AS"
"""The variable with the command name that started the server (``modelserver.tools.aliases``)."""

BENEATH: Final = "MODELSERVER_CONFIG_BENEATH"
"""The variable with a configuration file for keys that the configuration file does not set: the image's."""


@dataclass(frozen=True, slots=True)
class SettingText:
    """A text and its source: a file's path, ``flag --x`` or ``environment TS_X``; the line in a file."""

    text: str
    source: str
    line: int = 0


def find_config_file(flags: Mapping[str, object], environ: Mapping[str, str], cwd: Path) -> Path | None:
    """``TS_CONFIG_FILE``, else the flag ``ts_config``, else ``config.properties`` in ``cwd`` if it exists.

    Raises ConfigError if a named file is missing.
    """
    named = named_config_file(flags, environ)
    if named is None:
        fallback = cwd / "config.properties"
        return fallback if os.path.isfile(fallback) else None
    path = cwd / named
    if not os.path.isfile(path):
        raise ConfigError(f"--ts-config file not found: {named}")
    return path


def named_config_file(flags: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """The configuration file named by environment or flag."""
    named = environ.get("TS_CONFIG_FILE") or flags.get("ts_config")
    return str(named) if named else None


def gather(
    flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None
) -> dict[str, SettingText]:
    """The effective text of every key that is set anywhere, including unknown keys.

    Raises ConfigError for a file that cannot be read, or that refers to an environment variable that is not
    set.
    """
    in_file = _from_file(config_file, environ) if config_file else {}
    if image_file := environ.get(BENEATH):
        in_file = _from_image_file(Path(image_file), environ, {*in_file, *_from_flags(flags)}) | in_file
    texts = {**in_file, **_from_flags(flags)}
    reads_all = is_true(in_file.get("enable_envvars_config"))
    allowed_urls = is_true(in_file.get("use_env_allowed_urls"))
    texts.update(_from_environment(environ, reads_all=reads_all, allowed_urls=allowed_urls))
    oip = environ.get("TS_OPEN_INFERENCE_PROTOCOL")
    if oip:
        text = "true" if oip == "oip" else "false"
        texts["ts_open_inference_protocol"] = SettingText(text, "environment TS_OPEN_INFERENCE_PROTOCOL")
    return texts | _compat_defaults(texts, environ)


def _compat_defaults(texts: Mapping[str, SettingText], environ: Mapping[str, str]) -> dict[str, SettingText]:
    """Which defaults apply: the variable is always read; the command's name counts if nothing else is set."""
    if text := environ.get("TS_COMPAT_DEFAULTS"):
        return {"compat_defaults": SettingText(text, "environment TS_COMPAT_DEFAULTS")}
    if "compat_defaults" not in texts and environ.get(STARTED_AS) == TORCHSERVE:
        return {"compat_defaults": SettingText(TORCHSERVE, "started as torchserve")}
    return {}


def _from_file(path: Path, environ: Mapping[str, str]) -> dict[str, SettingText]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Invalid configuration: {path}: cannot be read ({error.strerror})") from None
    lines = line_numbers(data)
    return {
        key: SettingText(substitute(value, environ), str(path), lines[key])
        for key, value in parse(data).items()
    }


def _from_image_file(path: Path, environ: Mapping[str, str], named: set[str]) -> dict[str, SettingText]:
    """Reads the image's file; its ``load_models`` does not count if ``named`` has a store or a snapshot."""
    texts = _from_file(path, environ)
    if not named.isdisjoint({"model_store", "model_snapshot"}):
        texts.pop("load_models", None)
    return texts


def _from_flags(flags: Mapping[str, object]) -> dict[str, SettingText]:
    return {
        name: SettingText(_flag_text(value), f"flag {KEYS[name].flag or '--' + name.replace('_', '-')}")
        for name, value in flags.items()
        if name in KEYS and value is not None and value is not False
    }


def _flag_text(value: object) -> str:
    if value is True:
        return "true"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _from_environment(
    environ: Mapping[str, str], *, reads_all: bool, allowed_urls: bool
) -> dict[str, SettingText]:
    """The variables that are read: TorchServe's if it would read them, our own always."""
    return {
        name: SettingText(environ[key.env], f"environment {key.env}")
        for name, key in KEYS.items()
        if key.env is not None
        and key.env in environ
        and (reads_all or key.is_ours)
        and (name != "allowed_urls" or allowed_urls)
        and name not in {"ts_open_inference_protocol", "compat_defaults"}
    }


def is_true(item: SettingText | None) -> bool:
    """Whether the text is the word true."""
    return item is not None and item.text.strip().lower() == "true"
