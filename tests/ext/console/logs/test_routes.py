import asyncio
import json
import logging

import pytest
from starlette.requests import Request

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.console.logs.lines import LineQuery
from modelserver.ext.console.logs.ring import FIRST, LogRing
from modelserver.ext.console.logs.routes import MOST_STREAMS, LogRoute, read_query


class Scene:
    """A ring with a logger, and what answers with it."""

    def __init__(self):
        self.ring = LogRing()
        self.logger = logging.Logger("modelserver.x")  # noqa: LOG001 - of this test only
        self.access = logging.Logger("modelserver.access")  # noqa: LOG001 - of this test only
        self.logger.addHandler(self.ring)
        self.access.addHandler(self.ring)
        self.logs = LogRoute(self.ring, lambda _: ())

    async def page(self, query=""):
        request = Request({"type": "http", "query_string": query.encode(), "headers": []})
        return json.loads((await self.logs.respond(request, lambda: True)).body)

    def follow(self, allowed=lambda: True, limit=100, quiet=60.0, **query):
        return self.logs.follow(LineQuery(**query), limit, allowed, 0.001, quiet)


@pytest.fixture
async def scene():
    return Scene()


def lines_in(event):
    return json.loads(event.removeprefix(b"data: "))


async def test_a_page_has_lines_and_where_to_go_on(scene):
    for number in range(3):
        scene.logger.warning("line <b>%d</b>", number)
    page = await scene.page("limit=2&level=warn&source=server")

    assert [line["text"] for line in page["lines"]] == ["line <b>1</b>", "line <b>2</b>"]
    assert page["last"] == page["lines"][-1]["id"] == FIRST + 2
    assert "answers" not in page
    assert (await scene.page("source=workers,requests"))["lines"] == []


async def test_a_request_id_leads_to_its_answer(scene):
    """To those of this very id, whichever lines are chosen."""
    line = '/c "POST /predictions/m HTTP/1.1" 500 12 me-%d trace_id=4bf'
    for number in range(12):
        scene.access.info(line % number, extra={"request_ids": [f"me-{number}"]})
    scene.logger.error("Request me-1: it broke off")
    page = await scene.page("q=ME-1&source=server")

    assert [each["text"] for each in page["lines"]] == ["Request me-1: it broke off"]
    (answer,) = page["answers"]
    assert (answer["request"], answer["status"], answer["trace"]) == ("me-1", 500, "4bf")
    assert (await scene.page("q=me"))["answers"] == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"since": "yesterday"}, "since=yesterday: a whole number is needed"),
        ({"before": "-1"}, "before=-1: a whole number is needed"),
        ({"level": "loud"}, "level=loud: one of debug, info, warn, error is needed"),
        (
            {"source": "server,files"},
            "source=server,files: all, or some of server, workers, requests are needed",
        ),
        ({"limit": "1" * 50}, "limit=1111"),
    ],
)
def test_a_parameter_that_is_none_is_named(query, text):
    with pytest.raises(BadRequest, match=text):
        read_query(query)


async def test_a_stream_has_what_is_new_and_fits(scene):
    scene.logger.error("before")
    lines = scene.follow(since=scene.ring.last, level="error", limit=2)
    first = await anext(lines)
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    scene.logger.info("does not fit")
    for number in range(3):
        scene.logger.error("%d", number)
    event = lines_in(await coming)
    scene.logger.error("last")
    last = lines_in(await anext(lines))

    assert first == b":\n\n"
    assert [(line["text"], line.get("gap")) for line in event] == [("1", True), ("2", None)]
    assert [line["text"] for line in last] == ["last"]


async def test_a_stream_has_the_answer_to_a_request_that_is_logged_later(scene):
    """Whichever lines are chosen: a reader may look for a request before its answer is in the access log."""
    stream = scene.follow(text="ME-1", sources=("server",), since=scene.ring.last)
    first = await anext(stream)
    for request_id in ("me-1", "other", "me-1"):
        scene.access.info('/c "POST /predictions/m HTTP/1.1" 503 12', extra={"request_ids": [request_id]})
        scene.logger.error("Request %s: it broke off", request_id)
    lines, answers = lines_in(await anext(stream)), lines_in(await anext(stream))["answers"]

    assert first == b":\n\n"
    assert [line["text"] for line in lines] == ["Request me-1: it broke off"] * 2
    assert [(answer["request"], answer["status"]) for answer in answers] == [("me-1", 503)] * 2


async def test_a_stream_ends_with_its_token_or_the_server(scene):
    answers = iter([True, True, True, False])
    events = [event async for event in scene.follow(lambda: next(answers), quiet=0.0)]
    assert set(events) == {b":\n\n"}

    lines = scene.follow()
    assert await anext(lines) == b":\n\n"
    coming = asyncio.ensure_future(anext(lines))
    scene.logs.close()
    with pytest.raises(StopAsyncIteration):
        await coming
    assert scene.logs._streams == set()


async def test_streams_are_counted(scene):
    streams = [scene.follow() for _ in range(MOST_STREAMS)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(ServiceUnavailable):
        await scene.page("follow=true")
    for stream in streams:
        await stream.aclose()
