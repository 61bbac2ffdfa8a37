from __future__ import annotations

import logging

from modelserver.engine.telemetry.repeated import LOGGERS, MOST, SECONDS, FewTracebacks, limit_tracebacks


class Log:
    """What a logger with the filter lets through, by a clock that stands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.messages: list[str] = []
        self._filter = FewTracebacks(lambda: self.now)

    def add(self, message: str, *arguments: object, error: Exception | None = None) -> None:
        record = logging.LogRecord(
            "x",
            logging.ERROR,
            "",
            0,
            message,
            arguments,
            (type(error), error, error.__traceback__) if error else None,
        )
        if self._filter.filter(record):
            self.messages.append(record.getMessage())


def divide() -> Exception:
    """A caught error, always from the same line."""
    try:
        return Exception(1 / 0)
    except ZeroDivisionError as error:
        return error


def look_up() -> Exception:
    """An error from another line."""
    try:
        return Exception({}["x"])
    except KeyError as error:
        return error


def test_few_tracebacks_from_one_place() -> None:
    """From each place a few tracebacks are logged in a time; the next one after it says how many were not."""
    log = Log()
    for number in range(MOST + 7):
        log.add("connection %d", number, error=divide())
    log.add("other", error=look_up())
    assert log.messages == [*(f"connection {number}" for number in range(MOST)), "other"]

    log.now = SECONDS
    log.add("connection %s", "%s", error=divide())
    log.add("connection %s", "b", error=divide())
    assert log.messages[-2:] == ["connection %s (7 more of these were not logged)", "connection b"]


def test_lines_without_tracebacks() -> None:
    """All records without a traceback are logged."""
    log = Log()
    for _ in range(MOST + 7):
        log.add("a line")

    assert len(log.messages) == MOST + 7


def test_loggers_of_connections() -> None:
    """The limit is on the loggers themselves, whatever handles their records, and there once."""
    for _ in range(2):
        limit_tracebacks()

    for name in LOGGERS:
        logger = logging.getLogger(name)
        [limit] = logger.filters
        assert isinstance(limit, FewTracebacks)
        logger.removeFilter(limit)
