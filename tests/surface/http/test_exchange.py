import pytest
from tests.surface.http.wire import post

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.surface.http.exchange import MAX_PARAMETERS, Target, read_query, read_target


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (b"/a/b", Target("/a/b", b"", "/a/b")),
        (b"/a%20b?x=%20", Target("/a b", b"x=%20", "/a%20b?x=%20")),
        (b"http://host:1/a?", Target("/a", b"", "/a")),
        (b"http://host", None),
        (b"/\xc3\xa4", None),
        (b"a b", None),
    ],
)
def test_target_is_read_from_a_url(url, target):
    assert read_target(url) == target


async def test_error_is_answered_with_its_headers(busy):
    busy.send(post())
    busy.hot.exchanges[0].fail(ServiceUnavailable("later"), extra=b"x: y\r\n")

    assert busy.statuses == [503]
    assert b"\r\nx: y\r\nretry-after: 1\r\ncontent-type: application/json\r\n" in busy.transport.written
    assert b"later" in busy.transport.written


def test_query_with_too_many_parameters_is_refused():
    """A query has as many parameters as it may have, and is refused with more (F14)."""
    assert len(read_query(b"&".join([b"a=%41"] * MAX_PARAMETERS))) == MAX_PARAMETERS
    with pytest.raises(BadRequest, match="The query has 1025 parameters, 1024 are allowed"):
        read_query(b"a&" * MAX_PARAMETERS)
