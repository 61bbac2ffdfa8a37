"""Which records of the log are events: those that tell of a change, and every warning and error."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from modelserver.surface.api.describe import moment

# The characters of a message that are kept.
LONGEST: Final = 2000

# The kind of an event by the text of its record; a test holds that the server has these texts.
KINDS: Final = {
    "Model server started.": "started",
    "Stopping: serving waiting requests for up to %g s": "stopping",
    "Model %s loaded.": "registered",
    "Workflow %s registered: %s": "registered",
    "Model %s %s is unregistered.": "removed",
    "Workflow %s unregistered.": "removed",
    "Model %s %s is the default version": "default_changed",
    "Workers of %s: %d to %d, by request": "scaled",
    "Autoscaling %s: %d -> %d workers (%s)%s": "scaled",
    "Autoscaling %s: keeping %d workers, %d are wanted (%s)%s": "workers_missing",
    "Model %s: traffic %s": "traffic_changed",
    "Model %s %s was replaced by version %s": "replaced",
    "Model %s %s could not be replaced by %s and keeps serving: %s": "replace_failed",
    "Worker %s is ready, %.1f s after its start.": "loaded",
    "Worker %s could not load its model: %s": "load_failed",
    "Retry worker: %d in %g seconds.": "retry",
    "Worker %s is given up: %s": "given_up",
    "Worker %s is given up": "given_up",
    "Worker %s %s. Worker disconnected.": "restarted",
    "Worker %s is started again: %s": "restarted",
    "Worker %s did not answer within response_timeout=%g s": "killed",
    "Worker %s was silent for %g s while idle": "killed",
    "Worker %s: its GPU cannot be used any more: %s": "gpu_failed",
    "Worker %s is recycled: %s; starting %s in its place": "recycled",
    "Worker %s is kept, a new one could not be loaded: %s": "recycle_failed",
    "Model %s %s is loaded, in %.2f s": "loaded",
    "Model %s %s is not loaded: %s": "load_failed",
    "Model %s %s is parked (%s)": "parked",
    "Model %s %s is loaded ahead of time": "prewarmed",
    "The given tokens have changed: those in %s are valid now": "tokens_renewed",
    "The %s token was renewed": "tokens_renewed",
    "The certificate has changed; new connections use it": "certificate_renewed",
    "The disk of %s is full to %.0f %%": "disk_full",
    "Cannot write the snapshot, keeping the last one: %s": "snapshot_failed",
    "The event loop of %s was blocked for %.0f ms of CPU time; the last request was %s": "loop_stalled",
    "The log level is now %s": "log_level_changed",
}

_LEVELS: Final = ((logging.ERROR, "error"), (logging.WARNING, "warn"))
_WORKER: Final = re.compile(r"^W-\d+-")


class ServerEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Something that has happened; ``id`` grows by one from each to the next."""

    id: int
    time: str
    level: str
    kind: str
    message: str
    model: str = ""
    version: str = ""
    # Of a load that failed: how many have, in a row.
    attempt: int = 0


def kind_of(record: logging.LogRecord) -> str | None:
    """None if it is no event."""
    kind: str | None = getattr(record, "event", None) or KINDS.get(record.msg)
    if kind is None and record.levelno >= logging.WARNING:
        return level_of(record)
    return kind


def level_of(record: logging.LogRecord) -> str:
    """One of ``error``, ``warn`` and ``info``."""
    return next((name for least, name in _LEVELS if record.levelno >= least), "info")


def subject_of(record: logging.LogRecord, has: Callable[[str, str], bool]) -> tuple[str, str]:
    """The model, or workflow, and the version that it is about, as far as it says so.

    ``has``: whether there is a version of this name.
    """
    arguments: tuple[Any, ...] = record.args if isinstance(record.args, tuple) else ()
    template = str(record.msg)
    label = getattr(record, "label", None)
    if label is None and arguments:
        if template.startswith("Model %s %s"):
            return str(arguments[0]), str(arguments[1])
        if template.startswith(("Model %s", "Workflow %s")):
            return str(arguments[0]), ""
        if template.startswith(("Worker %s", "Workers of %s", "Autoscaling %s")):
            label = str(arguments[0])
    return ("", "") if label is None else split(_WORKER.sub("", label), has)


def split(label: str, has: Callable[[str, str], bool]) -> tuple[str, str]:
    """Name and version of ``<model>_<version>``, where both may have underscores."""
    parts = label.split("_")
    pairs = [("_".join(parts[:at]), "_".join(parts[at:])) for at in range(len(parts) - 1, 0, -1)]
    return next((pair for pair in pairs if has(*pair)), pairs[0] if pairs else (label, ""))


def event_of(record: logging.LogRecord, number: int, kind: str, subject: tuple[str, str]) -> ServerEvent:
    """The event that a record tells of."""
    message = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        message = f"{message}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return ServerEvent(
        number,
        moment(record.created),
        level_of(record),
        kind,
        message if len(message) <= LONGEST else f"{message[: LONGEST - 1]}…",
        *subject,
        getattr(record, "attempt", 0),
    )
