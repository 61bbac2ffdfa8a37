import pytest
from tests.campaign.callers import Malformed, take_answer

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = (
    b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("whole", [PLAIN, CHUNKED])
def test_answers_are_taken_one_by_one(whole):
    for size in range(len(whole)):
        assert take_answer(bytearray(whole[:size])) is None
    received = bytearray(b"HTTP/1.1 100 Continue\r\n\r\n" + whole + PLAIN)
    answer = take_answer(received)

    assert answer.body == b"hi"
    assert (answer.status, answer.closes) == ((200, False) if whole is PLAIN else (400, True))
    assert received == PLAIN
    assert take_answer(bytearray(PLAIN[:-2]), head=True).body == b""


@pytest.mark.parametrize(
    "received",
    [b"hi\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", PLAIN[:-1], CHUNKED.replace(b"2\r\n", b"x\r\n")],
    ids=["no status", "no length", "cut short", "no size"],
)
def test_what_is_no_answer_is_reported(received):
    with pytest.raises(Malformed):
        take_answer(bytearray(received), ended=True)
