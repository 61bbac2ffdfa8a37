"""Recorded requests that are sent again."""

from __future__ import annotations

import asyncio

import pytest
from tests.odd_servers import answering, listening

from modelserver.errors import ConfigError
from modelserver.tools.replay.sender import Place, send

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Batch-Id: b\r\nx-batch-size: 3\r\nother: 1\r\n\r\nok"


async def test_requests_are_sent_when_they_are_due(make_call) -> None:
    """A request that waits for an answer does not hold up the next; latency counts from the due time."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(OK)

    async with listening(slow) as port:
        place = Place("127.0.0.1", port)
        calls = [make_call(body=b"")] * 3
        many = await send(place, calls, [0.0, 0.05, 0.1], connections=10, patience=5.0)
        one = await send(place, calls[:2], [0.0, 0.0], connections=1, patience=5.0)

    assert [round(answer.sent, 2) for answer in many] == pytest.approx([0.0, 0.05, 0.1], abs=0.03)
    assert one[1].seconds > one[0].seconds + 0.15


async def test_what_gets_no_answer_is_told(make_call) -> None:
    """With the time that it was waited for."""
    async with listening(answering(b"", b"")) as port:
        place = Place("127.0.0.1", port)
        answers = await send(place, [make_call(body=b"")] * 3, None, connections=2, patience=0.3)
        await asyncio.sleep(0)

    assert "no answer within 0.3 s" in {answer.fault for answer in answers}


def test_the_bytes_of_a_request(make_call) -> None:
    """Recorded headers come first, those given next; length and host are those of now."""
    place = Place.of("http://[::1]:80/prefix/", [("authorization", "Bearer x")], None)

    assert place.request(make_call(target="/p?q=1", body=b"abc")) == (
        b"POST /prefix/p?q=1 HTTP/1.1\r\nhost: [::1]:80\r\ncontent-type: text/plain\r\n"
        b"authorization: Bearer x\r\ncontent-length: 3\r\n\r\nabc"
    )


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://x:99999", "http://x?y=1", "http://"])
def test_unusable_urls(url) -> None:
    """Are refused."""
    with pytest.raises(ConfigError, match="--to="):
        Place.of(url, [], None)


def test_unusable_authorities(tmp_path) -> None:
    """A file without certificates is refused."""
    with pytest.raises(ConfigError, match="--ca-file="):
        Place.of("https://x", [], str(tmp_path / "none.pem"))
