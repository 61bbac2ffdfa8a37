"""The trace and logging extensions, as far as they mean something here: no traces, but levels of the log.

Settings are JSON; a value of None is one that the client clears. What cannot be set is refused, except that a
client may always set what is already so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelserver.engine.telemetry.logs import log_level
from modelserver.errors import BadRequest

_FIXED = {"log_file": "", "log_format": "default", "log_error": True}
_VERBOSE = "log_verbose_level"


def trace_settings() -> dict[str, Any]:
    """Triton's traces are always off."""
    return {"trace_level": ["OFF"]}


def change_trace_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings after a change. Raises BadRequest for any that would trace something."""
    for name, value in changes.items():
        if value not in (None, [], "OFF", ["OFF"]):
            raise BadRequest(f"{name[:40]}: this server has no Triton traces, trace_level can only be OFF")
    return trace_settings()


def log_settings() -> dict[str, Any]:
    """The log level in Triton's terms: `log_verbose_level` is 1 for debug."""
    level = log_level()
    return {
        **_FIXED,
        "log_info": level in ("debug", "info"),
        "log_warning": level != "error",
        _VERBOSE: int(level == "debug"),
    }


def change_log_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the log level of the server; returns the settings. Raises BadRequest, naming the setting."""
    settings = log_settings()
    for name, value in changes.items():
        if name not in settings:
            raise BadRequest(
                f"{name[:40]}: there is no such setting, there are {', '.join(sorted(settings))}"
            )
        if name == _VERBOSE:
            if type(value) is not int or value < 0:
                raise BadRequest(f"{name}: a whole number of at least 0 is needed")
        elif name in _FIXED:
            if value != _FIXED[name]:
                raise BadRequest(
                    f"{name} is always {_FIXED[name]!r}: configure the log at the server's start"
                )
        elif not isinstance(value, bool):
            raise BadRequest(f"{name}: true or false is needed")
        settings[name] = value
    # Each level includes those after it.
    levels = (settings[_VERBOSE] > 0, settings["log_info"], settings["log_warning"], True)
    if list(levels) != sorted(levels):
        raise BadRequest("log_verbose_level needs log_info, and log_info needs log_warning")
    log_level(("debug", "info", "warn", "error")[levels.index(True)])
    return log_settings()
