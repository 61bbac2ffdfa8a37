"""What ``modelserver serve`` prints: its start, the model's lines, and outcomes; in colours on a terminal."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modelserver.engine.telemetry.background_log import InBackground, LogWriter
from modelserver.engine.telemetry.logs import ACCESS_LOGGER, MODEL_LOGGER, ConsoleHandler
from modelserver.engine.telemetry.metric_log import MODEL_METRICS_LOGGER, SERVER_METRICS_LOGGER
from modelserver.engine.telemetry.text import one_line

_QUIET: Final = (ACCESS_LOGGER, MODEL_METRICS_LOGGER, SERVER_METRICS_LOGGER)
# Loggers of failures to load or replace models, which the session reports itself.
_OUTCOME_LOGGERS: Final = ("modelserver.models", "modelserver.workers")
_OUR_LOGGER: Final = "modelserver"

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


class Style:
    """Colours texts, unless standard output is no terminal, or ``NO_COLOR`` is set."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._on = sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    def __call__(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._on and codes else text


class Lines:
    """Prints lines; those of the log too, from a thread, so that a slow terminal does not hold the server up.

    ``folder``: what is served from there was copied for the workers, and its lines name the original.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.style = Style()
        self._writer = LogWriter()
        self._logger = logging.getLogger(f"{_OUR_LOGGER}.serve")
        self._logger.propagate = False
        self._logger.setLevel(logging.INFO)
        self._attached: list[tuple[logging.Logger, logging.Handler]] = []
        self._attach(self._logger, logging.Formatter("%(message)s"))
        self._attach(logging.getLogger(MODEL_LOGGER), _ModelLines(self.style, _originals(folder)))
        self._attach(logging.getLogger(), _ServerLines(self.style), logging.WARNING)
        logging.getLogger(MODEL_LOGGER).propagate = False
        logging.getLogger(MODEL_LOGGER).setLevel(logging.INFO)
        for name in _QUIET:
            logging.getLogger(name).disabled = True

    def say(self, text: str = "", *codes: str) -> None:
        """Prints a text."""
        self._logger.info("%s", self.style(text, *codes))

    def close(self) -> None:
        """Prints what is left, and ends."""
        self._writer.close()
        for logger, handler in self._attached:
            logger.removeHandler(handler)
        for name in _QUIET:
            logging.getLogger(name).disabled = False

    def _attach(self, logger: logging.Logger, formatter: logging.Formatter, level: int = 0) -> None:
        handler = InBackground(ConsoleHandler(formatter), self._writer)
        handler.setLevel(level)
        if level:
            handler.addFilter(_is_news)
        logger.addHandler(handler)
        self._attached.append((logger, handler))


class _ModelLines(logging.Formatter):
    """A line that the handler printed; with several workers, whose."""

    def __init__(self, style: Style, originals: tuple[re.Pattern[str], str] | None) -> None:
        super().__init__()
        self._styled = style
        self._originals = originals

    def format(self, record: logging.LogRecord) -> str:
        match = re.match(r"W-\d+-(.+)_[^_]*-std(?:out|err)$", str(getattr(record, "source", "")))
        name = match[1] if match else "model"
        text = one_line(record.getMessage(), keep_tabs=True)
        if self._originals is not None:
            copies, folder = self._originals
            text = copies.sub(lambda _: folder, text)
        return f"{self._styled(name + ' |', DIM)} {text}"


class _ServerLines(logging.Formatter):
    """A warning or an error of the server."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._styled = style

    def format(self, record: logging.LogRecord) -> str:
        is_error = record.levelno >= logging.ERROR
        label = self._styled("error:" if is_error else "warning:", RED if is_error else YELLOW)
        traced = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        return f"{label} {record.getMessage()}" + (f"\n{traced}" if traced else "")


def from_here(path: str) -> str:
    """The path from here, if it is below."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether nothing else tells it."""
    return not (record.levelno >= logging.ERROR and record.name in _OUTCOME_LOGGERS)


def _originals(folder: Path | None) -> tuple[re.Pattern[str], str] | None:
    """Returns a pattern of the server's copies of a folder, and the folder."""
    if folder is None:
        return None
    base = re.escape(os.path.join(tempfile.gettempdir(), f"modelserver-{os.getpid()}-"))
    return re.compile(rf"{base}[^/]+/[0-9a-f]{{32}}/"), f"{folder}/"
