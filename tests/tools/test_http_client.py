import time

import pytest
from tests.odd_servers import answering, listening

from modelserver.tools.http_client import Requester, TimedResponse

REQUEST = b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Batch-Id: b\r\nx-batch-size: 3\r\nother: 1\r\n\r\nok"


async def ask(port, count, connections=1, patience=5.0, request=REQUEST, host="127.0.0.1"):
    answers = [TimedResponse(0.0, 0.0, fault="no answer")] * count
    requester = Requester(host, port, connections, answers.__setitem__)
    for number in range(count):
        requester.send(number, request)
    await requester.drain(patience)
    requester.close()
    return answers


async def test_answers_are_read():
    """Those to HEAD have no body, whatever their length says."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with listening(answering(OK, chunked, interim + OK)) as port:
        answers = await ask(port, 3)

    bodies = [(a.status, a.body, a.fault) for a in answers]
    assert bodies == [(200, body, "") for body in (b"ok", b"abc", b"ok")]
    assert answers[0].lines == b"x-batch-id: b\r\nx-batch-size: 3\r\n"
    head = REQUEST.replace(b"POST", b"HEAD")
    empty = OK.replace(b"content-length: 2", b"content-length: 0")
    async with listening(answering(OK[:-2])) as port, listening(answering(empty[:-2])) as other:
        answers = [*await ask(port, 2, request=head), *await ask(other, 2, request=head)]
    assert [(a.status, a.body, a.fault) for a in answers] == [(200, b"", "")] * 4


async def test_request_is_timed_from_when_it_was_due():
    answers = []
    async with listening(answering(OK)) as port:
        requester = Requester("127.0.0.1", port, 1, lambda _, answer: answers.append(answer))
        requester.send(0, REQUEST, time.perf_counter() - 3.0)
        await requester.drain(5.0)
        requester.close()

    assert answers[0].sent < 0
    assert answers[0].seconds >= 3.0


async def test_request_is_sent_again_where_the_server_has_closed_its_connection():
    """On another one, as no part of a response came."""

    async def once(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    async with listening(once) as port:
        answers = await ask(port, 3)

    assert [answer.status for answer in answers] == [200, 200, 200]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", "the connection was closed"),
        (b"SMTP ready\r\n\r\n", "unreadable answer"),
    ],
)
async def test_response_that_does_not_come_is_a_fault(answer, fault):
    async with listening(answering(answer, b"")) as port:
        answers = await ask(port, 3, connections=2, patience=0.5)

    assert all(each.status == 0 and (fault in each.fault or "no answer" in each.fault) for each in answers)
    unmade = [*await ask(port, 6, connections=4), *await ask(80, 3, host="a..b")]
    assert ["cannot connect" in answer.fault for answer in unmade] == [True] * 9
