import json
import logging
import os
import re
import stat
import threading

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.telemetry.logs import (
    MULTILINE,
    LogFile,
    PlainFormatter,
    Stamps,
    log_directories,
    setup_logging,
)
from modelserver.engine.telemetry.text import indented_lines, one_line, shortened, without_credentials
from modelserver.errors import ConfigError

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
_SUFFIXES = ("", ".model", ".access", ".metrics", ".model_metrics")
LOGGERS = tuple(f"modelserver{suffix}" for suffix in _SUFFIXES)


@pytest.fixture(autouse=True)
def _restored_loggers():
    loggers = [logging.getLogger(name) for name in ("", *LOGGERS)]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture
def logs(tmp_path):
    made = setup_logging(tmp_path, console=False)
    yield made
    made.close()


def print_as(source, line, level=logging.INFO):
    """Log a line as a worker's output is logged."""
    logging.getLogger("modelserver.model").log(level, "%s", line, extra={"source": source})


def test_five_files_are_there_from_the_start(tmp_path):
    """User and group of the server read them, others do not; those of metrics may have a directory."""
    before = os.umask(0)
    try:
        setup_logging(tmp_path / "a", console=False).close()
        setup_logging(tmp_path / "b", metrics_dir=tmp_path / "c", console=False).close()
    finally:
        os.umask(before)
    files = {path.name: path.stat() for path in (tmp_path / "a").iterdir()}

    names = ("access_log", "model_log", "model_metrics", "ts_log", "ts_metrics")
    assert sorted(files) == [f"{name}.log" for name in names]
    assert {(stat.S_IMODE(each.st_mode), each.st_size) for each in files.values()} == {(0o640, 0)}
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["model_metrics.log", "ts_metrics.log"]


def test_each_line_goes_to_its_file_with_its_stamp(tmp_path, logs):
    logging.getLogger("modelserver.server").info("started %d", 1)
    logging.getLogger("modelserver.server").critical("gone")
    logging.getLogger("library").warning("careful")
    logging.getLogger("library").info("chatter")
    lines = (tmp_path / "ts_log.log").read_text().splitlines()
    thread = re.escape(threading.current_thread().name)

    assert re.fullmatch(rf"{STAMP} \[INFO \] {thread} modelserver\.server - started 1", lines[0])
    assert re.fullmatch(rf"{STAMP} \[FATAL\] {thread} modelserver\.server - gone", lines[1])
    assert re.fullmatch(rf"{STAMP} \[WARN \] {thread} library - careful", lines[2])
    assert len(lines) == 3

    print_as("W-9000-m_1.0-stdout", "hello")
    print_as("W-9000-m_1.0-stderr", "oh no", logging.WARNING)
    lines = (tmp_path / "model_log.log").read_text().splitlines()

    assert re.fullmatch(rf"{STAMP} \[INFO \] W-9000-m_1\.0-stdout MODEL_LOG - hello", lines[0])
    assert re.fullmatch(rf"{STAMP} \[WARN \] W-9000-m_1\.0-stderr MODEL_LOG - oh no", lines[1])

    logging.getLogger("modelserver.metrics").info("A.Count:1.0")
    logging.getLogger("modelserver.model_metrics").info("B.ms:1.0")

    assert re.fullmatch(rf"{STAMP} - A\.Count:1\.0\n", (tmp_path / "ts_metrics.log").read_text())
    assert re.fullmatch(rf"{STAMP} - B\.ms:1\.0\n", (tmp_path / "model_metrics.log").read_text())


def test_injected_lines_stay_one_line(tmp_path, logs):
    """What clients and handlers put into messages never makes a second line (F13)."""
    print_as("W-1-a\nb_1.0", "x\r\n2024 forged\x1b[0m")
    logging.getLogger("modelserver").warning("No model named %s", "a\nforged")

    assert len((tmp_path / "model_log.log").read_text().splitlines()) == 1
    assert (tmp_path / "ts_log.log").read_text().splitlines()[0].endswith(r"No model named a\nforged")


def test_blocks_and_tracebacks_are_indented(tmp_path, logs):
    """The server's own blocks and tracebacks keep their lines, all but the first indented (F13)."""
    logger = logging.getLogger("modelserver")
    logger.info("Settings:\nport: 1", extra=MULTILINE)
    logger.error("Failed", exc_info=ValueError("bad\n2024 forged"))
    lines = (tmp_path / "ts_log.log").read_text().splitlines()

    assert lines[1] == "    port: 1"
    assert "    ValueError: bad" in [line[:19] for line in lines]
    assert [line for line in lines if line[0] != " "] == [lines[0], lines[2]]


def test_console_prints_everything_or_nothing(tmp_path, capsys):
    for console in (True, False):
        logs = setup_logging(tmp_path, console=console)
        for name in LOGGERS:
            logging.getLogger(name).info("from %s", name)
        logs.close()
        printed = capsys.readouterr().out

        assert [name for name in LOGGERS if f"from {name}\n" in printed] == (list(LOGGERS) if console else [])
        assert console or not printed


def test_the_console_prints_the_brief_of_a_record(tmp_path, capsys):
    """What other lines of the console say already is left out there, and is whole in the file."""
    logs = setup_logging(tmp_path)
    log = logging.getLogger("modelserver.server")
    log.error("it failed:\nTraceback", extra={**MULTILINE, "brief": "it failed"})
    log.info("said before", extra={"brief": ""})
    logs.close()
    printed = capsys.readouterr().out.splitlines()

    assert [line.partition(" - ")[2] for line in printed] == ["it failed"]
    assert "Traceback" in (tmp_path / "ts_log.log").read_text()
    assert "said before" in (tmp_path / "ts_log.log").read_text()


def test_without_files_lines_are_printed(tmp_path, capsys):
    logs = setup_logging(tmp_path / "logs", files=False, console=False)
    print_as("W-9000-m_1.0-stdout", "a line of a worker")
    logs.close()

    assert capsys.readouterr().out.endswith("a line of a worker\n")
    assert not (tmp_path / "logs").exists()


def test_variables_name_the_log_directories():
    """LOG_LOCATION and METRICS_LOCATION name the directories, `logs` is the default of both."""
    assert [str(path) for path in log_directories({})] == ["logs", "logs"]
    places = log_directories({"LOG_LOCATION": "/l", "METRICS_LOCATION": "/m"})
    assert [*map(str, places)] == ["/l", "/m"]


def test_unwritable_directory_leaves_the_console(tmp_path, capsys):
    """If no file can be written, the server still starts and logs to the console (F56)."""
    (tmp_path / "file").write_text("")
    logs = setup_logging(tmp_path / "file", console=False)
    logging.getLogger("modelserver").info("alive")
    logs.close()
    printed = capsys.readouterr().out

    assert "alive" in printed
    assert "Logging to the console only" in printed


def test_full_disk_is_reported_once(tmp_path, capsys):
    """A file that cannot be written costs no request and one report, not one per line (F56)."""
    handler = LogFile(tmp_path / "x.log", PlainFormatter())
    handler.stream.close()
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "line", (), None)
    for _ in range(3):
        handler.emit(record)
    handler.stream = None
    handler.close()

    assert capsys.readouterr().err.count("--- Logging error ---") == 1


def test_full_file_is_rotated(tmp_path, monkeypatch):
    monkeypatch.setattr("modelserver.engine.telemetry.logs.ROTATE_BYTES", 100)
    handler = LogFile(tmp_path / "x.log", PlainFormatter())
    for _ in range(20):
        handler.emit(logging.LogRecord("x", logging.INFO, __file__, 1, "line " * 10, (), None))
    handler.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", *(f"x.log.{n}" for n in range(1, 6))]


def test_stamps_have_milliseconds_after_a_comma():
    stamp = Stamps()

    assert re.fullmatch(STAMP, stamp(1717098363.625))
    assert stamp(1717098363.625).endswith(":03,625")
    assert stamp(1717098364.0).endswith(":04,000")


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_config_replaces_the_default(tmp_path, suffix):
    target = tmp_path / "own.log"
    config = {
        "handlers": {"own": {"class": "logging.FileHandler", "filename": str(target)}},
        "loggers": {"modelserver": {"handlers": ["own"], "level": "INFO"}},
    }
    path = tmp_path / f"logging{suffix}"
    path.write_text(json.dumps(config) if suffix == ".json" else yaml.safe_dump(config))
    logs = setup_logging(tmp_path / "logs", log_config=path)
    logging.getLogger("modelserver.server").info("hello")

    assert target.read_text() == "hello\n"
    assert logs.stamped is False
    assert not (tmp_path / "logs").exists()


def test_ini_config_is_read(tmp_path):
    path = tmp_path / "logging.ini"
    path.write_text(
        "[loggers]\nkeys=root,own\n[handlers]\nkeys=file\n[formatters]\nkeys=\n"
        "[logger_root]\nhandlers=\n[logger_own]\nqualname=modelserver\nlevel=INFO\nhandlers=file\n"
        f"[handler_file]\nclass=FileHandler\nargs=({str(tmp_path / 'own.log')!r},)\n"
    )
    setup_logging(tmp_path / "logs", log_config=path)
    logging.getLogger("modelserver").info("hello")

    assert (tmp_path / "own.log").read_text() == "hello\n"


@pytest.mark.parametrize("name", ["log4j2.xml", "log4j.properties"])
def test_log4j_is_accepted_with_one_warning(tmp_path, name):
    logs = setup_logging(tmp_path, console=False, log_config=tmp_path / name)
    logs.close()
    lines = (tmp_path / "ts_log.log").read_text().splitlines()

    assert len(lines) == 1
    assert "log4j configurations are not supported" in lines[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.yaml", "!!python/object/apply:os.getcwd []"),
        ("a.yaml", "handlers: {x: {class: no.such.Handler}}"),
        ("a.ini", "nothing"),
        ("a.toml", ""),
        ("missing.json", None),
        ("missing.ini", None),
    ],
)
def test_bad_config_is_refused(tmp_path, name, content):
    """A configuration that cannot be used stops the start and names the file (F60)."""
    path = tmp_path / name
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigError, match=re.escape(str(path))):
        setup_logging(tmp_path, log_config=path)


@given(st.text())
def test_further_lines_are_escaped_or_indented(text):
    """No text makes a second line or a terminal control, or passes for a line of its own (F13)."""
    line = one_line(text)

    assert len(line.splitlines()) <= 1
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line)

    first, *others = indented_lines(text).split("\n")

    assert all(line.startswith("    ") for line in others)
    assert len(first.splitlines()) <= 1


def test_escapes_are_readable_and_long_text_is_cut():
    assert one_line("a\nb\r\tc\x1b[31m\u2028") == r"a\nb\r\tc\x1b[31m\u2028"
    assert one_line("é\u202e 漢字 🙂") == r"é\u202e 漢字 🙂"
    assert one_line("a\tb\n", keep_tabs=True) == "a\tb\\n"

    assert shortened("abc", 3) == "abc"
    assert shortened("abcdef", 3) == "abc... (3 more characters)"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/models?url=https://u:p@h/m.mar&x=1", "/models?url=https://***@h/m.mar&x=1"),
        ("/models?url=https://token@h/m.mar", "/models?url=https://***@h/m.mar"),
        ("/models?url=https://u:p%2Fw@h/m.mar", "/models?url=https://***@h/m.mar"),
        ("/models?url=https%3A%2F%2Fu:p%40h%2Fm%40.mar", "/models?url=https%3A%2F%2F***%40h%2Fm%40.mar"),
        ("/models?url=https%3a%2f%2fu%3ap@h%2fm", "/models?url=https%3a%2f%2f***@h%2fm"),
        ("/models?url=http://u:a@b@h/m", "/models?url=http://***@h/m"),
        ("/models?url=http://h/m@2.mar&q=a@b", "/models?url=http://h/m@2.mar&q=a@b"),
        ("/predictions/m?mail=a@b.c", "/predictions/m?mail=a@b.c"),
    ],
)
def test_credentials_are_masked(text, masked):
    assert without_credentials(text) == masked


def test_masking_is_quick_on_hostile_text():
    """Masking takes time in proportion to the text, whatever it is (the test's time limit would tell)."""
    for text in ("%3A%2F%2F" * 20_000, "://" * 50_000, "://" + "a" * 200_000, ":" * 200_000):
        assert without_credentials(f"{text} ") == f"{text} "
