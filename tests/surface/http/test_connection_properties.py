import asyncio
import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.surface.http.wire import CHUNKED, Wire, chunk, head, settle

REQUESTS = st.lists(
    st.tuples(st.sampled_from(["/hot", "/cold", "/hot/a%20b?q=1", "/other"]), st.binary(max_size=40)),
    min_size=1,
    max_size=6,
)
CHUNKS = st.lists(st.booleans(), min_size=6, max_size=6)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


def encode(path: str, body: bytes, *, chunked: bool) -> bytes:
    if not chunked:
        return head(f"Content-Length: {len(body)}", path=path) + body
    pieces = [body[:7], body[7:]]
    encoded = b"".join(chunk(piece) for piece in pieces if piece)
    return head(CHUNKED, path=path) + encoded + b"0\r\n\r\n"


@settings(max_examples=150)
@given(requests=REQUESTS, chunked=CHUNKS, cuts=CUTS)
def test_answers_do_not_depend_on_how_bytes_arrive(requests, chunked, cuts):
    """However the bytes of pipelined requests are cut, each is answered once, whole and in order (F16)."""
    sent = b"".join(
        encode(path, body, chunked=how) for (path, body), how in zip(requests, chunked, strict=False)
    )
    marks = [0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]

    async def talk() -> bytes:
        wire = Wire()
        for start, end in itertools.pairwise(marks):
            if start < end:
                wire.send(sent[start:end])
            await settle()
        for _ in requests:
            await settle()
        assert not wire.transport.closed
        return wire.transport.written

    assert bodies_of(asyncio.run(talk())) == [body for _, body in requests]


def bodies_of(written: bytes) -> list[bytes]:
    """The bodies of the 200s that were written, one behind the other, with nothing between or after them."""
    bodies = []
    while written:
        assert written.startswith(b"HTTP/1.1 200 OK\r\n")
        lines, _, rest = written.partition(b"\r\n\r\n")
        [length] = re.findall(rb"(?mi)^content-length: (\d+)", lines)
        bodies.append(rest[: int(length)])
        written = rest[int(length) :]
    return bodies
