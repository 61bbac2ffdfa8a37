import asyncio
import json
import logging
from types import SimpleNamespace

import httpx
import pytest

from modelserver.errors import BadRequest
from modelserver.ext.events.routes import Followers, Stream, add_routes, read_query
from modelserver.ext.events.store import EventStore, Query
from modelserver.surface.api.application import Application


class Scene:
    """A store with a logger, its followers, and a client of the route."""

    def __init__(self):
        self.followers = Followers()
        self.followers.loop = asyncio.get_running_loop()
        self.store = EventStore(None, lambda *_: False, self.followers.wake)
        self.logger = logging.Logger("x")  # noqa: LOG001 - of this test only
        self.logger.addHandler(self.store)
        app = Application()
        add_routes(app, SimpleNamespace(tokens=None), self.store, self.followers)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")

    def stream(self, is_allowed=lambda: True, quiet=60.0, limit=100, **query):
        encode = lambda event: b"-" if event is None else event.message.encode()  # noqa: E731
        return Stream(self.store, self.followers, encode, is_allowed, quiet).lines(Query(**query), limit)


@pytest.fixture
async def scene():
    return Scene()


async def test_a_page_has_events_and_where_to_go_on(scene):
    for number in range(3):
        scene.logger.warning("event <b>%d</b>", number)
    page = (await scene.client.get("/events?limit=2&level=warn")).json()

    assert [event["id"] for event in page["events"]] == [2, 3]
    assert page["events"][0]["message"] == "event <b>1</b>"
    assert (page["last"], page["leftOut"]) == (3, 0)
    assert (await scene.client.get("/events?since=3")).json()["events"] == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"since": "yesterday"}, "since=yesterday: an id or a time such as 2026-05-30T21:46 is needed"),
        ({"before": "-1"}, "before=-1: a whole number is needed"),
        ({"level": "loud"}, "level=loud: one of info, warn, error is needed"),
        ({"limit": "1" * 50}, "limit=1111"),
    ],
)
def test_a_parameter_that_is_none_is_named(query, text):
    with pytest.raises(BadRequest, match=text):
        read_query(query)


def test_since_is_an_id_or_a_time():
    assert read_query({"since": "12", "limit": "5000"}) == (Query(since=12), 1000)
    assert read_query({"since": "2026-05-30T21:46Z", "q": "GPU"})[0] == Query(
        since_time="2026-05-30T21:46", text="gpu"
    )


async def test_a_stream_goes_on_with_what_fits(scene):
    scene.logger.warning("1")
    lines = scene.stream(level="error", since=0, limit=2)
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    scene.logger.warning("does not fit")
    await asyncio.sleep(0)
    for number in range(2, 7):
        scene.logger.error("%d", number)
    parts = [await coming, await anext(lines), await anext(lines)]

    assert parts == [b"23", b"45", b"6"]
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    scene.followers.close()
    with pytest.raises(StopAsyncIteration):
        await coming


async def test_a_stream_begins_with_the_last_ones(scene):
    for number in range(5):
        scene.logger.error("%d", number)
    lines = scene.stream(limit=2)

    assert await anext(lines) == b"34"
    scene.logger.error("new")
    assert await anext(lines) == b"new"


async def test_an_event_of_another_thread_is_sent(scene):
    lines = scene.stream()
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.to_thread(scene.logger.error, "from a thread")

    assert await coming == b"from a thread"


async def test_a_quiet_stream_gives_signs_of_life_until_its_token_ends(scene):
    answers = iter([True, True, False])
    lines = [line async for line in scene.stream(lambda: next(answers), quiet=0.0)]

    assert set(lines) == {b"-"}


@pytest.mark.parametrize(
    ("accept", "first"), [("text/event-stream", b'id: 1\ndata: {"id":1,'), ("*/*", b'{"id":1,"time":')]
)
async def test_streams_are_lines_or_server_sent_events(scene, accept, first):
    scene.logger.error("one")
    scene.logger.error("two")
    scene.followers.close()
    answer = await scene.client.get("/events?follow=true", headers={"accept": accept})

    assert answer.content.startswith(first)
    if accept == "*/*":
        assert [json.loads(line)["message"] for line in answer.content.splitlines()] == ["one", "two"]
    later = await scene.client.get("/events?follow=true", headers={"accept": accept, "last-event-id": "1"})
    assert (b"one" in later.content) is (accept == "*/*")
