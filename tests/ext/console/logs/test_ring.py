import logging
import threading

from tests.ext.console.logs.records import answered, texts

from modelserver.ext.console.logs.lines import LineQuery
from modelserver.ext.console.logs.ring import FIRST, MOST, MOST_BYTES


def test_lines_of_all_sources_are_in_their_order(ring, log):
    log.server.info("one <b>%s</b>", "bold")
    log.model.warning("two", extra={"source": "W-9000-m_1.0-stderr"})
    answered(log, ('2026-05-30T21:46:03,625 - /1.2.3.4:5 "POST /predictions/m HTTP/1.1" 503 12 a-b', "a-b"))
    log.server.debug("four")
    log.metrics.info("Requests:1")
    page = ring.page(LineQuery(), 100)

    assert (
        [line.id for line in page]
        == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
        == [*range(FIRST, ring.last + 1)]
    )
    assert [line.source for line in page] == ["server", "workers", "requests", "server"]
    assert [line.level for line in page] == ["info", "warn", "error", "debug"]
    assert page[0].text == "one <b>bold</b>"
    assert (page[1].origin, page[0].origin) == ("W-9000-m_1.0-stderr", threading.current_thread().name)
    assert page[2].text == '/1.2.3.4:5 "POST /predictions/m HTTP/1.1" 503 12 a-b'
    assert (page[2].request, page[2].status) == ("a-b", 503)
    assert [line.id for line in ring.page(LineQuery(), 2)] == [FIRST + 2, FIRST + 3]
    assert [line.id for line in ring.page(LineQuery(before=FIRST + 2), 1)] == [FIRST + 1]


def test_a_traceback_belongs_to_its_line(ring, log):
    try:
        raise ValueError("no <i>weights</i>")  # noqa: TRY301 - there is nobody else
    except ValueError:
        log.server.exception("It failed")

    (text,) = texts(ring, level="error", text="WEIGHTS")
    assert text.startswith("It failed\nTraceback")
    assert text.endswith("ValueError: no <i>weights</i>")


def test_memory_is_bounded(ring, log):
    """By lines and bytes of each source: workers that print do not push out what the server says."""
    log.server.info("The server starts")
    for number in range(MOST + 10):
        log.model.info("%d", number)
    page = ring.page(LineQuery(), 3 * MOST)
    assert len(page) == MOST + 1
    assert (page[0].text, page[1].text) == ("The server starts", "10")

    for _ in range(MOST):
        log.model.info("x" * 100_000)
    answered(log, *[(f'/c "GET /{"y" * 5000} HTTP/1.1" 404 3', "id")] * 512)
    lines = ring.page(LineQuery(sources=("workers",)), MOST)
    assert 200 < len(lines) < MOST_BYTES / 4000
    assert {len(line.text) for line in lines} == {4000 + len(" ... (96000 characters) ... ")}
    assert {line.status for line in ring.page(LineQuery(sources=("requests",)), MOST)} == {404}
    assert sum(shelf._bytes for shelf in ring._shelves.values()) < 3 * MOST_BYTES


def test_who_is_behind_learns_that_lines_are_missing(ring, log):
    """Because there were too many for a page, or they are no longer kept."""
    log.server.info("first")
    at = ring.last
    for number in range(5):
        log.server.info("%d", number)
    page = ring.page(LineQuery(since=at), 5)[:2]
    assert [(line.text, line.gap) for line in page] == [("0", False), ("1", False)]
    page = ring.page(LineQuery(since=at), 2)
    assert [(line.text, line.gap) for line in page] == [("3", True), ("4", False)]
    for number in range(MOST):
        log.server.info("%d", number)
    assert ring.page(LineQuery(since=at), MOST)[0].gap
    assert not ring.page(LineQuery(since=ring.last - 2), MOST)[0].gap


def test_it_listens_to_loggers_that_end_at_themselves(ring, monkeypatch):
    """A configuration of logging may let the access log reach the root, or not."""
    access, model = logging.getLogger("modelserver.access"), logging.getLogger("modelserver.model")
    monkeypatch.setattr(access, "propagate", False)
    monkeypatch.setattr(model, "propagate", True)
    monkeypatch.setattr(access, "level", logging.INFO)
    monkeypatch.setattr(model, "level", logging.INFO)
    ring.attach()
    try:
        access.info("one")
        model.info("two")
    finally:
        ring.detach()
    model.warning("three")

    assert texts(ring) == ["one", "two"]
