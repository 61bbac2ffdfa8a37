import asyncio

import pytest

from modelserver.surface.http.exchange import Target
from modelserver.testing.loopback import Loopback


def opened():
    ended = asyncio.get_running_loop().create_future()
    headers = [(b"Content-Type", b"text/plain"), (b"X-Request-Timeout-Ms", b"50")]
    return Loopback(ended).exchange(Target("/p", b"", "/p"), b"body", headers), ended


async def test_request_and_whole_answer_arrive_as_written():
    exchange, ended = opened()
    assert (exchange.method, exchange.body) == (b"POST", b"body")
    assert (exchange.content_type, exchange.deadline_ms) == ("text/plain", 50)
    exchange.reply(201, b"made", "text/plain", b"x-more: 1\r\n")

    answer = ended.result()
    assert (answer.status, answer.body, answer.parts, answer.complete) == (201, b"made", (), True)
    assert (answer.content_type, answer.headers["x-more"]) == ("text/plain", "1")
    exchange, ended = opened()
    exchange.reply(204, b"")
    assert (ended.result().status, ended.result().complete) == (204, True)


@pytest.mark.parametrize("complete", [True, False])
async def test_parts_are_separate_and_joined(complete):
    exchange, ended = opened()
    exchange.begin(200, "text/plain")
    for part in (b"a", b"", b"bc"):
        exchange.send(part)
    assert not ended.done()
    exchange.end(complete)

    assert (ended.result().parts, ended.result().body) == ((b"a", b"bc"), b"abc")
    assert ended.result().complete is complete
    assert exchange.unsent() == 0
