from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.api.content import UnsupportedEncoding, inflate
from modelserver.errors import BadRequest, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 1000


@given(
    st.binary(max_size=LIMIT), st.sampled_from([b"gzip", b"x-gzip", b"GZip ", b"deflate", b"", b"identity"])
)
def test_content_comes_out_as_it_went_in(content: bytes, encoding: bytes) -> None:
    """Both encodings, in any case and up to exactly the limit, are undone; none is nothing to undo."""
    name = encoding.strip().lower()
    packed = content
    if name.endswith(b"gzip"):
        packed = gzip.compress(content)
    elif name == b"deflate":
        packed = zlib.compress(content)

    assert inflate(packed, encoding, LIMIT) == content


def test_content_of_exactly_the_limit_passes() -> None:
    """The limit itself is allowed, one byte more is not."""
    assert len(inflate(gzip.compress(b"x" * LIMIT), b"gzip", LIMIT)) == LIMIT
    with pytest.raises(PayloadTooLarge):
        inflate(gzip.compress(b"x" * (LIMIT + 1)), b"gzip", LIMIT)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_bomb_is_refused_without_being_unpacked(pack: Callable[[bytes], bytes]) -> None:
    """A body that inflates beyond the limit is a 413, and memory stays near the limit (F6)."""
    encoding = b"gzip" if pack is gzip.compress else b"deflate"
    packed = pack(b"\0" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge, match="max_request_size=1000") as caught:
            inflate(packed, encoding, LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.status == 413
    assert peak < 1_000_000
    with pytest.raises(PayloadTooLarge):
        inflate(pack(b"x" * (LIMIT + 1)), encoding, LIMIT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"plain", "is no gzip data", id="not compressed"),
        pytest.param(b"", "ends too early", id="empty"),
        pytest.param(gzip.compress(b"abc" * 50)[:-9], "ends too early", id="cut"),
        pytest.param(gzip.compress(b"abc")[:-8] + b"\0" * 8, "is no gzip data", id="wrong checksum"),
        pytest.param(gzip.compress(b"abc") + b"more", "goes on after the end", id="trailing bytes"),
        pytest.param(gzip.compress(b"abc") * 2, "goes on after the end", id="two members"),
        pytest.param(zlib.compress(b"abc"), "is no gzip data", id="deflate under the name of gzip"),
    ],
)
def test_body_that_is_not_what_it_says_is_a_bad_request(body: bytes, message: str) -> None:
    """Nothing of a damaged body is passed on, and nothing behind its end is dropped in silence (F6)."""
    with pytest.raises(BadRequest, match=message) as caught:
        inflate(body, b"gzip", LIMIT)

    assert caught.value.status == 400


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"\xff\r\n"])
def test_unknown_encoding_is_unsupported(encoding: bytes) -> None:
    """Other encodings are a 415 that names those that are known (F6)."""
    with pytest.raises(UnsupportedEncoding, match="gzip, deflate and identity are") as caught:
        inflate(b"x", encoding, LIMIT)

    assert caught.value.status == 415
    assert "\n" not in caught.value.message
