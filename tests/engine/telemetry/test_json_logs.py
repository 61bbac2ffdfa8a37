import json
import logging
import re

import pytest

from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.logs import MULTILINE, setup_logging

NAMES = ("", "modelserver", *(f"modelserver.{n}" for n in ("model", "access", "metrics", "model_metrics")))


@pytest.fixture
def logs(tmp_path):
    """Logging as JSON, taken away again afterwards."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    made = setup_logging(tmp_path, console=False, as_json=True)
    yield made
    made.close()
    for logger, level, propagate in before:
        logger.setLevel(level)
        logger.propagate = propagate


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def test_each_record_has_the_fields_and_errors_their_trace(tmp_path, logs):
    for logger, file in (("modelserver.server", "ts_log"), ("modelserver.model", "model_log")):
        logging.getLogger(logger).warning("hello %s", "you", extra={"source": "W-9000-m_1.0-stderr"})
        (line,) = lines(tmp_path / f"{file}.log")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
        visible = {"modelserver.model": "MODEL_LOG"}.get(logger, logger)
        source = "W-9000-m_1.0-stderr"
        assert line == {"level": "WARN", "logger": visible, "source": source, "message": "hello you"}

    try:
        int("what was wrong")
    except ValueError:
        logging.getLogger("modelserver.server").exception("it failed")

    line = lines(tmp_path / "ts_log.log")[-1]

    assert line["message"] == "it failed"
    assert line["trace"].endswith("'what was wrong'")


def test_nothing_breaks_a_line(tmp_path, logs):
    """Whatever a message holds, a record is one line, and the message is read back as it was (F13)."""
    texts = ["a\nb\r\n{}", '"}', "\x1b[31m\x00", "\u2028\u202e", "\ud800", "ü"]
    for text in texts:
        logging.getLogger("modelserver.server").info("%s", text, extra=MULTILINE)

    content = (tmp_path / "ts_log.log").read_bytes()
    assert content.count(b"\n") == len(content.splitlines()) == len(texts)
    assert [line["message"] for line in lines(tmp_path / "ts_log.log")] == texts


def test_access_lines_are_records(tmp_path, logs):
    access = AccessLog(stamped=logs.stamped, clock=lambda: 1717098363.6254)
    access.log("127.0.0.1:5000", "GET", "/ping", "1.1", 200, 0.0025)
    access.log("127.0.0.1:5000", "GET", "/x", "1.1", 404, 0.0)
    access.flush()

    first, second = lines(tmp_path / "access_log.log")
    assert first["time"] == "2024-05-30T19:46:03.625Z"
    assert first["message"] == '/127.0.0.1:5000 "GET /ping HTTP/1.1" 200 2'
    assert second["message"].endswith("404 0")
