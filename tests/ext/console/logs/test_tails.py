import logging

import pytest
from tests.ext.console.logs.records import texts

from modelserver.ext.console.logs.lines import LineQuery
from modelserver.ext.console.logs.ring import FIRST, LogRing
from modelserver.ext.console.logs.tails import TAIL


@pytest.mark.parametrize("as_json", [False, True])
def test_it_begins_with_the_ends_of_files(tmp_path, as_json):
    """Of what was there before it listened, and with ids before its own."""
    lines = {
        "ts_log.log": [
            "2026-05-30T21:46:01,000 [INFO ] MainThread modelserver.x - Model server started.",
            "2026-05-30T21:46:04,000 [ERROR] MainThread modelserver.x - It failed",
            "    Traceback - of it",
        ],
        "model_log.log": [
            "2026-05-30T21:46:02,000 [WARN ] W-9000-a b_1.0-stderr MODEL_LOG - low - on memory"
        ],
        "access_log.log": ['2026-05-30T21:46:03,000 - /1.2.3.4:5 "POST /x HTTP/1.1" 500 12 some-id'],
    }
    if as_json:
        lines = {
            "ts_log.log": [
                (
                    '{"time": "2026-05-30T21:46:01.000Z", "level": "INFO", "source": "MainThread",'
                    ' "message": "Model server started."}'
                ),
                (
                    '{"time": "2026-05-30T21:46:04.000Z", "level": "ERROR", "source": "MainThread",'
                    ' "message": "It failed", "trace": "Traceback - of it"}'
                ),
                "{}",
            ],
            "model_log.log": [
                (
                    '{"time": "2026-05-30T21:46:02.000Z", "level": "WARN", "source": "W-9000-a b_1.0-stderr",'
                    ' "message": "low - on memory"}'
                )
            ],
            "access_log.log": [
                (
                    '{"time": "2026-05-30T21:46:03.000Z", "level": "INFO", "source": "x",'
                    ' "message": "/1.2.3.4:5 \\"POST /x HTTP/1.1\\" 500 12 some-id"}'
                )
            ],
        }
    for name, content in lines.items():
        (tmp_path / name).write_text("\n".join(content) + "\n")
    ring = LogRing(tmp_path)
    logger = logging.Logger("modelserver.x")  # noqa: LOG001 - of this test only
    logger.addHandler(ring)
    logger.info("new")
    with open(tmp_path / "ts_log.log", "a") as file:
        file.write("2026-05-30T21:46:09,000 [INFO ] MainThread modelserver.x - new\n")
    (tmp_path / "ts_log.log").rename(tmp_path / "ts_log.log.1")
    page = ring.page(LineQuery(), 100)

    assert [line.text for line in page] == [
        "Model server started.",
        "low - on memory",
        '/1.2.3.4:5 "POST /x HTTP/1.1" 500 12 some-id',
        "It failed\nTraceback - of it",
        "new",
    ]
    assert [line.id for line in page] == [*range(FIRST - 4, FIRST + 1)]
    assert [line.level for line in page] == ["info", "warn", "error", "error", "info"]
    assert page[1].origin == "W-9000-a b_1.0-stderr"
    assert (page[2].request, page[2].status) == ("some-id", 500)
    assert [round(line.time - page[0].time) for line in page[:4]] == [0, 1, 2, 3]
    assert texts(ring, model="a b") == ["low - on memory"]


def test_of_a_large_file_only_the_end_is_read(tmp_path):
    """Of 10 GB as of any other size."""
    line = b"2026-05-30T21:46:01,000 [INFO ] MainThread modelserver.x - line %06d\n"
    with open(tmp_path / "ts_log.log", "wb") as file:
        file.truncate(10_000_000_000)
        file.seek(0, 2)
        file.write(b"\n" + b"".join(line % number for number in range(5000)))
    ring = LogRing(tmp_path)
    page = ring.page(LineQuery(), 10_000)

    assert page[-1].text == "line 004999"
    assert len(page) == TAIL // (len(line) + 2)
    assert not (tmp_path / "none").exists()
    assert LogRing(tmp_path / "none").page(LineQuery(), 10) == []
