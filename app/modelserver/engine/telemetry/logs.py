"""The log files of reference 15.5, and the console.

    logger                       file               line
    modelserver, and libraries   ts_log.log         <time> [<LEVEL>] <thread> <logger> - <message>
    modelserver.model            model_log.log      the same; output of workers
    modelserver.access           access_log.log     <time> - <message>, made by AccessLog
    modelserver.metrics          ts_metrics.log     <time> - <metric>
    modelserver.model_metrics    model_metrics.log  <time> - <metric>

A record's ``source`` replaces the thread: `W-<id>-<model>_<version>-stdout` for a worker's output. Messages
are kept on one line, whatever a client or handler puts into them (F13), unless logged with
``extra=MULTILINE``. Where other lines of the console already say a part of a record, the console prints its
``brief`` instead, or nothing.
"""

from __future__ import annotations

import copy
import json
import logging
import logging.config
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelserver.engine.telemetry.background_log import InBackground, LogWriter
from modelserver.engine.telemetry.metric_log import MODEL_METRICS_LOGGER, SERVER_METRICS_LOGGER
from modelserver.engine.telemetry.text import indented_lines, one_line, shortened
from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from io import TextIOWrapper

ROTATE_BYTES = 100 * 1000 * 1000
ROTATED_FILES = 5
MAX_MESSAGE = 64 * 1024  # characters
MULTILINE = {"multiline": True}

SERVER_LOGGER = "modelserver"
ACCESS_LOGGER = "modelserver.access"
MODEL_LOGGER = "modelserver.model"

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

_WARNING = "Warning: "
_LEVEL_NAMES = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_LOGGER_LABELS = {MODEL_LOGGER: "MODEL_LOG"}
_LOG4J = (".xml", ".properties")
_open_private = partial(os.open, mode=0o640)

_log = logging.getLogger(__name__)


class Stamps:
    """Formats local times as `2024-05-30T21:46:03,625`, caching the parts."""

    def __init__(self) -> None:
        self._second = -1
        self._day_and_time = ""
        self._millisecond = -1
        self._text = ""

    def __call__(self, seconds: float) -> str:
        millisecond = int(seconds * 1000)
        if millisecond != self._millisecond:
            second = millisecond // 1000
            if second != self._second:
                self._day_and_time = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
                self._second = second
            self._text = f"{self._day_and_time},{millisecond % 1000:03d}"
            self._millisecond = millisecond
        return self._text


class LineFormatter(logging.Formatter):
    """`<time> [<LEVEL>] <thread> <logger> - <message>`; a record's ``source`` replaces the thread."""

    def __init__(self) -> None:
        super().__init__()
        self._stamp = Stamps()

    def format(self, record: logging.LogRecord) -> str:
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        source = one_line(str(getattr(record, "source", None) or record.threadName))
        name = _LOGGER_LABELS.get(record.name, record.name)
        line = f"{self._stamp(record.created)} [{level:<5}] {source} {name} - {_message(record)}"
        return line + "".join(f"\n    {indented_lines(text)}" for text in _traces(self, record))


class JsonFormatter(logging.Formatter):
    """A JSON object per line: time (UTC), level, logger, source (or thread) and message.

    ``trace_id`` is that of a traced request, ``trace`` a traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        values = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z",
            "level": _LEVEL_NAMES.get(record.levelname, record.levelname),
            "logger": _LOGGER_LABELS.get(record.name, record.name),
            "source": str(getattr(record, "source", None) or record.threadName),
            "message": shortened(record.getMessage(), MAX_MESSAGE),
        }
        if trace_id := getattr(record, "trace_id", None):
            values["trace_id"] = trace_id
        if traces := _traces(self, record):
            values["trace"] = "\n".join(traces)
        return json.dumps(values)


def json_line(text: str) -> str:
    """A text that is printed without the log, as a line of it; a warning begins with ``Warning: ``."""
    warns = text.startswith(_WARNING)
    level = logging.WARNING if warns else logging.INFO
    record = logging.LogRecord(SERVER_LOGGER, level, "", 0, text.removeprefix(_WARNING), None, None)
    return JsonFormatter().format(record)


class PlainFormatter(LineFormatter):
    """`<time> - <message>`, for metrics."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._stamp(record.created)} - {_message(record)}"


class LogFile(logging.handlers.RotatingFileHandler):
    """A log file of up to 100 MB with 5 rotated files; a full disk is reported only once (F56)."""

    def __init__(self, path: Path, formatter: logging.Formatter) -> None:
        super().__init__(path, backupCount=ROTATED_FILES, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(formatter)
        self._has_failed = False

    def _open(self) -> TextIOWrapper:
        # Lines have clients' addresses and what models print: not for everybody on the machine.
        return open(self.baseFilename, "a", encoding="utf-8", errors=self.errors, opener=_open_private)

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 -- the name is logging's
        """By the size of the file: logging would format each record twice, and look for the file by name."""
        return self.stream is not None and os.fstat(self.stream.fileno()).st_size >= ROTATE_BYTES

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- the name is logging's
        if not self._has_failed:
            self._has_failed = True
            super().handleError(record)


class ConsoleHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic in Python 3.10
    """The current standard output; a closed pipe is not an error."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        brief = getattr(record, "brief", None)
        if brief is not None:
            record = copy.copy(record)
            record.msg, record.args = brief, None
        if brief != "":
            self.stream = sys.stdout
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- the name is logging's
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)


@dataclass(frozen=True, slots=True)
class Logs:
    """The logging setup. ``stamped``: access lines include their time, see AccessLog."""

    stamped: bool
    handlers: tuple[tuple[logging.Logger, logging.Handler], ...] = ()
    writer: LogWriter | None = None

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        for logger, handler in self.handlers:
            logger.removeHandler(handler)
            handler.close()


# Each logger, its file and formatter.
_SINKS: tuple[tuple[str, str, Callable[[], logging.Formatter]], ...] = (
    ("", "ts_log.log", LineFormatter),
    (MODEL_LOGGER, "model_log.log", LineFormatter),
    # AccessLog formats its lines itself.
    (ACCESS_LOGGER, "access_log.log", logging.Formatter),
    (SERVER_METRICS_LOGGER, "ts_metrics.log", PlainFormatter),
    (MODEL_METRICS_LOGGER, "model_metrics.log", PlainFormatter),
)
_METRICS = (SERVER_METRICS_LOGGER, MODEL_METRICS_LOGGER)


def log_directories(environment: Mapping[str, str] | None = None) -> tuple[Path, Path]:
    """The folders of logs and metrics logs: LOG_LOCATION and METRICS_LOCATION, by default `logs`."""
    values = os.environ if environment is None else environment
    return Path(values.get("LOG_LOCATION") or "logs"), Path(values.get("METRICS_LOCATION") or "logs")


def setup_logging(
    log_dir: Path,
    *,
    metrics_dir: Path | None = None,
    files: bool = True,
    console: bool = True,
    log_config: Path | None = None,
    as_json: bool = False,
    in_background: bool = False,
) -> Logs:
    """Sends every logger to its file and, with ``console`` or without ``files``, to standard output.

    With ``as_json`` each line is a JSON object; with ``in_background`` a separate thread writes them. A
    ``log_config`` of Python's logging (.json, .yaml, .ini) replaces all of this; log4j files are ignored with
    a warning. If a directory cannot be written, only the console is used. Call it once, and close the result
    at the end. Raises ConfigError for a bad ``log_config``.
    """
    metrics_dir = metrics_dir or log_dir
    is_log4j = log_config is not None and log_config.suffix.lower() in _LOG4J
    if log_config is not None and not is_log4j:
        _apply_config(log_config)
        return Logs(stamped=False)
    attached: list[tuple[logging.Logger, logging.Handler]] = []
    problems: list[str] = []
    writer = LogWriter() if in_background else None
    for name, file, text in _SINKS:
        path = (metrics_dir if name in _METRICS else log_dir) / file if files else None
        handlers = _handlers(path, JsonFormatter if as_json else text, console=console, problems=problems)
        if writer is not None:
            handlers = [InBackground(handler, writer) for handler in handlers]
        attached += _attached(logging.getLogger(name or None), handlers)
    logging.getLogger(SERVER_LOGGER).setLevel(logging.INFO)
    for problem in problems:
        _log.warning("Logging to the console only: %s", problem)
    if is_log4j:
        _log.warning("log4j configurations are not supported, using the default logging: %s", log_config)
    return Logs(stamped=not as_json, handlers=tuple(attached), writer=writer)


def log_level(change: str = "") -> str:
    """The level of the server's own messages, one of ``LEVELS``, which may change it first.

    It changes at once, but not for access log, metrics and the output of workers.
    """
    logger = logging.getLogger(SERVER_LOGGER)
    if change:
        logger.setLevel(LEVELS[change])
        _log.log(max(logging.INFO, LEVELS[change]), "The log level is now %s", change)
    level = logger.getEffectiveLevel()
    return next((name for name in reversed(LEVELS) if level >= LEVELS[name]), "debug")


def _handlers(
    path: Path | None, formatter: Callable[[], logging.Formatter], *, console: bool, problems: list[str]
) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(LogFile(path, formatter()))
    except OSError as error:
        problems.append(str(error))
    return [*handlers, ConsoleHandler(formatter())] if console or not handlers else handlers


def _attached(
    logger: logging.Logger, handlers: list[logging.Handler]
) -> list[tuple[logging.Logger, logging.Handler]]:
    for handler in handlers:
        logger.addHandler(handler)
    if logger is not logging.root:
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return [(logger, handler) for handler in handlers]


def _apply_config(path: Path) -> None:
    try:
        if path.suffix.lower() in {".ini", ".cfg", ".conf"}:
            path.stat()
            logging.config.fileConfig(path, disable_existing_loggers=False)
            return
        config = _read_config(path)
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **config})
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"log_config {path} cannot be used: {error or type(error).__name__}") from error


def _read_config(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix not in {".json", ".yaml", ".yml"}:
        raise ConfigError(f"log_config {path}: expected a .json, .yaml or .ini file of Python's logging")
    text = path.read_text(encoding="utf-8")
    if suffix == ".json":
        config = json.loads(text)
    else:
        import yaml  # noqa: PLC0415 - servers without such a file need none

        config = yaml.safe_load(text)
    if not isinstance(config, dict):
        raise ConfigError(f"log_config {path}: expected a mapping, got {type(config).__name__}")
    return config


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    traced = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return [text for text in (traced, stack) if text]


def _message(record: logging.LogRecord) -> str:
    message = shortened(record.getMessage(), MAX_MESSAGE)
    if getattr(record, "multiline", False):
        return indented_lines(message)
    return one_line(message, keep_tabs=True)


# Limits tracebacks in the log that clients may cause, so that they cannot fill a disk.

# Tracebacks from one place in the code that are logged within so many seconds.
MOST, SECONDS = 5, 60.0
# The loggers of what handles connections and requests; asyncio reports errors of protocols.
LOGGERS = ("asyncio", "modelserver.api", "modelserver.frontend", "modelserver.grpc")


class FewTracebacks(logging.Filter):
    """Drops records whose traceback has been logged often enough; the next one says how many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By place: the time of the first one, and how many there were since.
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        trace = record.exc_info[2] if record.exc_info else None
        if trace is None:
            return True
        while trace.tb_next is not None:
            trace = trace.tb_next
        place, now = (trace.tb_frame.f_code.co_filename, trace.tb_lineno), self._clock()
        since, count = self._counts.get(place, (now, 0))
        if now - since >= SECONDS:
            if count > MOST:
                record.msg = f"{record.getMessage()} ({count - MOST} more of these were not logged)"
                record.args = None
            since, count = now, 0
        self._counts[place] = since, count + 1
        return count < MOST


_few = FewTracebacks()


def limit_tracebacks() -> None:
    """Limits those of ``LOGGERS``, whatever handles their records."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_few)
