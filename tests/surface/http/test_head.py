import pytest

from modelserver.surface.http.head import announced_length, fault_of

HOST = (b"Host", b"x")


@pytest.mark.parametrize(
    ("headers", "version", "status"),
    [
        ([HOST], "1.1", None),
        ([], "1.0", None),
        ([], "1.1", 400),
        ([HOST, (b"HOST", b"x")], "1.1", 400),
        ([HOST, (b"Content-Length", b"0012")], "1.1", None),
        ([HOST, (b"content-length", b"1" * 20)], "1.1", 400),
        ([HOST, (b"content-length", b"+1")], "1.1", 400),
        ([HOST, (b"content-length", b"")], "1.1", 400),
        ([HOST, (b"Transfer-Encoding", b"Chunked ")], "1.1", None),
        ([HOST, (b"transfer-encoding", b"gzip, chunked")], "1.1", 501),
        ([HOST, (b"transfer-encoding", b"gzip"), (b"Transfer-Encoding", b"chunked")], "1.1", 501),
        ([HOST, (b"transfer-encoding", b"chunked, gzip")], "1.1", 400),
        ([HOST, (b"transfer-encoding", b"bogus")], "1.1", 400),
        ([(b"transfer-encoding", b"chunked")], "1.0", 400),
        # These names have the lengths of names that are read.
        ([HOST, (b"Date", b"x"), (b"accept-charset", b"x"), (b"x-some-header-abc", b"x")], "1.1", None),
    ],
)
def test_ambiguous_head_is_refused(headers, version, status):
    fault = fault_of(headers, version)
    assert (None if fault is None else fault.status) == status


def test_announced_length_is_read():
    """The length stands in a header of any case; without one it is 0."""
    assert announced_length([HOST, (b"Content-LENGTH", b"0012")]) == 12
    assert announced_length([HOST]) == 0
