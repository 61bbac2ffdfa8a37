import asyncio
import logging
import os
import sys
from collections import deque

import pytest

from modelserver.engine.pools.output import (
    LINE_LIMIT,
    LINES_A_SECOND,
    LINES_AT_ONCE,
    MAX_LINES,
    LineReader,
    OutputReaders,
    PrintedMetric,
    parse_metric,
)


@pytest.fixture
def tail():
    return deque(maxlen=3)


@pytest.fixture
async def reader(tail, caplog):
    caplog.set_level(logging.INFO, logger="modelserver.model")
    return LineReader("W-9000-m-stdout", logging.WARNING, tail)


async def test_the_last_lines_are_stored():
    output = OutputReaders()
    output.name("W")
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    output.attach((out, err))
    os.write(out_end, b"".join(b"%d\n" % number for number in range(MAX_LINES + 5)))
    os.close(out_end)
    os.close(err_end)
    await output.finish()

    assert output.last(2) == f"{MAX_LINES + 3}\n{MAX_LINES + 4}"
    assert output.last(2 * MAX_LINES).startswith("5\n6\n")


async def test_lines_are_logged_however_they_are_cut(reader, tail, caplog):
    """Each line has its source and level, and no colours; half a line counts at the end of the stream."""
    for piece in (b"one\ntw", b"o\r\n", b"\xff\n", b"\x1b[1mbold\x1b[0m \x1b]8;;x\x1b\\link\x1b[2K\n"):
        reader.data_received(piece)

    assert caplog.messages == ["one", "two", "�", "bold link"]
    assert {(record.levelno, record.source) for record in caplog.records} == {
        (logging.WARNING, "W-9000-m-stdout")
    }
    assert list(tail)[-2:] == ["�", "bold link"]

    reader.data_received(b"no newline")
    assert not reader.ended.done()
    reader.finish()

    assert caplog.messages[4:] == ["no newline"]
    assert reader.ended.done()


async def test_endless_line_is_cut(reader, caplog):
    """A line without end is cut, and never collected (F44)."""
    for _ in range(50):
        reader.data_received(b"x" * 100_000)
    reader.data_received(b"\nnext\n")

    assert [len(message) for message in caplog.messages] == [LINE_LIMIT, 4]


async def test_flood_of_lines_is_cut(reader, tail, caplog):
    """Of a flood of lines the log gets so many and then their number; the tail has the last of them (F44)."""
    reader._loop = _Clock(5.0)
    reader.data_received(b"".join(b"%d\n" % n for n in range(LINES_A_SECOND + 1000)))

    assert len(caplog.messages) == LINES_A_SECOND
    assert tail[-1] == str(LINES_A_SECOND + 999)
    reader._loop = _Clock(6.0)
    reader.data_received(b"later\n")
    dropped = f"[1000 lines were dropped: more than {LINES_A_SECOND} in a second]"
    assert caplog.messages[-2:] == [dropped, "later"]


async def test_the_end_of_a_flood_is_logged(reader, caplog):
    reader._loop = clock = _Clock(5.5)
    reader.data_received(b"line\n" * (LINES_A_SECOND + 700))
    reader.data_received(b"line\n" * 300)
    ((when, tell),) = clock.calls
    tell()

    assert when == 6.0
    assert caplog.messages[-1] == f"[1000 lines were dropped: more than {LINES_A_SECOND} in a second]"


class _Clock:
    def __init__(self, now):
        self._now = now
        self.calls = []

    def call_at(self, when, callback):
        self.calls.append((when, callback))

    def time(self):
        return self._now


async def test_printed_metrics_are_not_logged(caplog):
    """A line that reports a metric goes to who keeps metrics, others to the log (reference 15.4, 18.5)."""
    reports = []
    tail = deque()
    caplog.set_level(logging.INFO, "modelserver.model")
    reader = LineReader("W", logging.INFO, tail, lambda *metric: reports.append(metric))
    reader.data_received(
        b"before\n[METRICS]n.Count:2|#a:b|#type:COUNTER|#hostname:h,1,id\n[METRICS]no\nafter\n"
    )

    assert reports == [("n", 2.0, "Count", "counter", (("a", "b"),), "id")]
    assert [record.getMessage() for record in caplog.records] == ["before", "[METRICS]no", "after"]
    assert list(tail) == ["before", "[METRICS]no", "after"]


async def test_what_comes_at_once_is_taken_in_pieces(reader, caplog):
    inner, outer = os.pipe()
    os.write(outer, b"".join(b"%d\n" % n for n in range(LINES_AT_ONCE * 5)))
    reader.attach(inner)
    taken = []
    while len(caplog.messages) < LINES_AT_ONCE * 5:
        await asyncio.sleep(0)
        if len(caplog.messages) != sum(taken):
            taken.append(len(caplog.messages) - sum(taken))
    os.close(outer)
    await reader.ended

    assert taken == [LINES_AT_ONCE] * 5
    assert caplog.messages == [str(n) for n in range(LINES_AT_ONCE * 5)]


async def test_a_flood_is_dropped_for_little(reader, tail):
    """Lines beyond the bound are counted, not taken: only those that are kept cost calls (F44)."""
    reader._loop = _Clock(5.0)
    reader.data_received(b"x\n" * LINES_A_SECOND)
    flood = b"y\n" * 32_000 + b"last\n"
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    for _ in range(30):
        reader.data_received(flood)
    sys.setprofile(None)

    assert calls < 30 * 10 * MAX_LINES < 30 * 32_000
    assert reader._left_out == 30 * 32_001
    assert tail[-1] == "last"


async def test_the_end_takes_what_was_read(reader, caplog):
    inner, outer = os.pipe()
    os.write(outer, b"a\n" * (LINES_AT_ONCE * 3))
    reader.attach(inner)
    reader._read()
    assert len(caplog.messages) == LINES_AT_ONCE
    reader.close()
    os.close(outer)

    assert len(caplog.messages) == LINES_AT_ONCE * 3


async def test_what_an_agent_has_read(reader, caplog):
    lines = [str(number) for number in range(3 * LINES_AT_ONCE)]
    data = "\n".join(lines).encode()
    reader.feed(data[:1000])
    reader.feed(data[1000:])
    assert len(caplog.messages) == LINES_AT_ONCE
    while len(caplog.messages) < 2 * LINES_AT_ONCE:  # noqa: ASYNC110 - after a pause
        await asyncio.sleep(0.001)
    assert len(caplog.messages) < len(lines)
    reader.finish()
    assert caplog.messages == lines


HOST = "#hostname:h,1700000000"


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        (
            f"[METRICS]Words.Count:2|#Kind:a,Level:Model|#type:COUNTER|{HOST},one,two",
            PrintedMetric("Words", 2.0, "Count", "counter", (("Kind", "a"), ("Level", "Model")), "one,two"),
        ),
        (
            f"INFO > [METRICS]Time taken.ms:-1.5e-3|#|#type:GAUGE|{HOST}",
            PrintedMetric("Time taken", -0.0015, "ms", "gauge", (), ""),
        ),
        (
            f"[METRICS]a.b.Count:1|#Url:http://x|#type:HISTOGRAM|{HOST},",
            PrintedMetric("a.b", 1.0, "Count", "histogram", (("Url", "http://x"),), ""),
        ),
        (f"[METRICS]n.:3|#a|#type:COUNTER|{HOST}", PrintedMetric("n", 3.0, "", "counter", (("a", ""),), "")),
    ],
)
def test_metrics_are_parsed(line, metric):
    """Name, unit, value, dimensions, type and request are those of the line (reference 15.4)."""
    assert parse_metric(line) == metric


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[METRICS]",
        "words",
        f"see [METRICS]n.Count:1|#|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|#type:SUMMARY|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|#type:counter|{HOST}",
        "[METRICS]n.Count:1|#Kind:a|#type:COUNTER",
        f"[METRICS]n.Count:word|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:nan|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:inf|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS].Count:1|#Kind:a|#type:COUNTER|{HOST}",
        "[METRICS]Failed to update metric with name:n and dimensions: a with value: 1: why",
        "[METRICS]" + "a." * 4000,
        "[METRICS]" + "a" * 8000 + ".b:" * 50,
    ],
)
def test_other_lines_are_logged(line):
    assert parse_metric(line) is None
