import asyncio
from types import SimpleNamespace

import msgspec
from starlette.requests import Request

from modelserver.ext.console.tries import MOST_UNSENT, TriedExchange, answer_try
from modelserver.surface.inference.routes import target_finder


def exchange():
    """One for a model m."""
    target = target_finder()(b"/predictions/m")
    assert target is not None
    return TriedExchange(target, SimpleNamespace(scope={"headers": [(b"x", b"y")]}), b"")


async def test_the_model_gets_the_request_and_the_page_its_answer(client, hot):
    """Path, query, body and headers reach the route, the token does not; batch and times come back."""
    hot.answer = lambda each: each.reply(
        201,
        b'{"a":1}',
        "application/json",
        b"x-batch-id: b1\r\nx-batch-size: 3\r\nserver-timing: queue;dur=1\r\nset-cookie: a=b\r\n",
    )
    answer = await client.post(
        "/console/try/predictions/m%20x/1.0?top=2",
        content=b"picture",
        headers={"content-type": "image/png", "authorization": "Bearer secret", "x-request-id": "me"},
    )
    (tried,) = hot.exchanges

    assert (tried.target.route.model, tried.target.route.version) == ("m x", "1.0")
    assert (tried.body, tried.content_type, tried.request_id) == (b"picture", "image/png", "me")
    assert tried.target.query == b"top=2"
    assert b"authorization" not in dict(msgspec.msgpack.decode(tried.packed_headers()))
    assert (answer.status_code, answer.json()) == (201, {"a": 1})
    assert (answer.headers["x-batch-id"], answer.headers["x-batch-size"]) == ("b1", "3")
    assert answer.headers["server-timing"] == "queue;dur=1"
    assert answer.headers["x-console-try"] == "1"


async def test_an_answer_cannot_act_on_the_console(client, hot):
    """A page of a handler's runs nothing, and sets neither cookies nor other headers."""
    hot.answer = lambda each: each.reply(
        200, b"<script>alert(1)</script>", "text/html", b"set-cookie: a=b\r\nrefresh: 0\r\n"
    )
    answer = await client.post("/console/try/predictions/m")

    assert "set-cookie" not in answer.headers
    assert "refresh" not in answer.headers
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_answer_without_a_body_has_none(client, hot):
    """Of some statuses there is none, whatever the handler returned."""
    hot.answer = lambda each: each.reply(204, b"left out")
    answer = await client.post("/console/try/predictions/m")

    assert (answer.status_code, answer.content) == (204, b"")


async def test_parts_of_an_answer_follow_each_other(client, hot):
    """They come one after the other; one that breaks off says so."""

    def answer(each):
        each.begin(200, "text/plain")
        each.send(b"one ")
        each.send(b"two")
        each.end(complete=False)

    hot.answer = answer

    assert (await client.post("/console/try/v1/models/m:predict")).text == (
        "one two\n[The answer broke off here.]"
    )


async def test_a_page_that_is_left_takes_its_request_along(hot):
    """The model's queue forgets it."""
    messages = iter([{"type": "http.request", "body": b"x"}, {"type": "http.disconnect"}])
    left = []
    hot.answer = lambda each: setattr(each, "on_disconnect", lambda: left.append("left"))

    async def receive():
        return next(messages)

    path = b"/console/try/predictions/m"
    scope = {"type": "http", "method": "POST", "headers": [], "raw_path": path, "query_string": b""}
    answer = await asyncio.wait_for(answer_try(Request(scope, receive), SimpleNamespace(unwatched=hot)), 5.0)

    assert left == ["left"]
    assert answer.status_code == 499


async def test_what_nobody_reads_ends():
    """More than an answer's limit does not wait for a page that reads nothing."""
    left = []
    tried = exchange()
    tried.on_disconnect = lambda: left.append("left")
    tried.begin(200)
    tried.send(b"x" * (MOST_UNSENT + 1))
    tried.send(b"one more")

    assert tried.unsent() == MOST_UNSENT + 1
    assert left == ["left"]
    assert [len(part) async for part in tried.parts()] == [MOST_UNSENT + 1]
