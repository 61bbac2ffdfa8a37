import logging
import re
import threading

import pytest

from modelserver.engine.telemetry import background_log
from modelserver.engine.telemetry.background_log import InBackground, LogWriter
from modelserver.engine.telemetry.logs import (
    LOGGERS,
    MOST,
    SECONDS,
    FewTracebacks,
    setup_logging,
)
from modelserver.engine.telemetry.stalls import loop_watch

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"


class Slow(logging.Handler):
    """Writes when it may."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.lines = []
        self.threads = set()

    def emit(self, record):
        self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        self.lines.append(record.getMessage())


@pytest.fixture
def slow():
    made = Slow()
    yield made
    made.gate.set()


def record(text, *arguments):
    return logging.LogRecord("x", logging.INFO, __file__, 1, text, arguments, None)


def test_nobody_waits_for_the_disk(slow):
    writer = LogWriter()
    handler = InBackground(slow, writer)
    values = ["first"]
    handler.emit(record("%s", values))
    values[0] = "changed"
    handler.emit(record("second"))
    assert slow.lines == []
    slow.gate.set()
    handler.close()

    assert slow.lines == ["['first']", "second"]
    assert slow.threads == {"log writer"}


def test_what_is_too_much_is_dropped_and_counted(slow):
    writer = LogWriter(limit=10)
    handler = InBackground(slow, writer)
    for number in range(100):
        handler.emit(record("line %d", number))
    slow.gate.set()
    handler.close()
    written = [line for line in slow.lines if line.startswith("line")]

    assert 10 <= len(written) <= 11
    lost = 100 - len(written)
    assert slow.lines[-1].startswith(f"{lost} log records were dropped because they could not")


def test_the_end_does_not_wait_for_ever(slow, monkeypatch):
    monkeypatch.setattr(background_log, "PATIENCE", 0.05)
    writer = LogWriter()
    InBackground(slow, writer).emit(record("never"))
    writer.close()
    writer.close()

    assert slow.lines == []


def test_files_are_as_they_are_without(tmp_path):
    logs = setup_logging(tmp_path, console=False, in_background=True)
    try:
        logging.getLogger("modelserver.model").info("%s", "hello", extra={"source": "W-9000-m_1.0-stdout"})
        try:
            raise ValueError("bad\n2024 forged")  # noqa: TRY301
        except ValueError:
            logging.getLogger("modelserver").exception("Failed %s", "here")
    finally:
        logs.close()
    model = (tmp_path / "model_log.log").read_text()
    server = (tmp_path / "ts_log.log").read_text().splitlines()

    assert re.fullmatch(rf"{STAMP} \[INFO \] W-9000-m_1\.0-stdout MODEL_LOG - hello\n", model)
    assert re.fullmatch(rf"{STAMP} \[ERROR\] MainThread modelserver - Failed here", server[0])
    assert server[1] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in server[1:])


class Log:
    """What a logger with the filter lets through, by a clock that stands."""

    def __init__(self):
        self.now = 0.0
        self.messages = []
        self._filter = FewTracebacks(lambda: self.now)

    def add(self, message, *arguments, error=None):
        raised = (type(error), error, error.__traceback__) if error else None
        record = logging.LogRecord("x", logging.ERROR, "", 0, message, arguments, raised)
        if self._filter.filter(record):
            self.messages.append(record.getMessage())


def divide():
    """A caught error, always from the same line."""
    try:
        return Exception(1 / 0)
    except ZeroDivisionError as error:
        return error


def look_up():
    try:
        return Exception({}["x"])
    except KeyError as error:
        return error


def test_repeated_tracebacks_from_one_place_are_limited():
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

    log = Log()
    for _ in range(MOST + 7):
        log.add("a line")

    assert len(log.messages) == MOST + 7


async def test_loggers_of_connections_are_limited_once_a_loop_serves():
    for _ in range(2):
        loop_watch.start(print)
        loop_watch.close()

    for name in LOGGERS:
        logger = logging.getLogger(name)
        [limit] = logger.filters
        assert isinstance(limit, FewTracebacks)
        logger.removeFilter(limit)
