import gzip
import time
import tracemalloc
import zlib
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.worker.rows.forms import parse_multipart, parse_urlencoded
from modelserver.errors import BadRequest, PayloadTooLarge
from modelserver.surface.http.content import UnsupportedEncoding, form_field, inflate

LIMIT = 1000


@given(
    st.binary(max_size=LIMIT), st.sampled_from([b"gzip", b"x-gzip", b"GZip ", b"deflate", b"", b"identity"])
)
def test_content_comes_out_as_it_went_in(content, encoding):
    name = encoding.strip().lower()
    packed = content
    if name.endswith(b"gzip"):
        packed = gzip.compress(content)
    elif name == b"deflate":
        packed = zlib.compress(content)

    assert inflate(packed, encoding, LIMIT) == content


@pytest.mark.parametrize(("pack", "encoding"), [(gzip.compress, b"gzip"), (zlib.compress, b"deflate")])
def test_bomb_is_refused_without_being_unpacked(pack, encoding):
    """A body that inflates beyond the limit gets 413, and memory stays near the limit (F6)."""
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
    assert len(inflate(pack(b"x" * LIMIT), encoding, LIMIT)) == LIMIT
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
def test_damaged_body_is_refused(body, message):
    """Nothing of it is passed on, and nothing behind its end is dropped in silence (F6)."""
    with pytest.raises(BadRequest, match=message):
        inflate(body, b"gzip", LIMIT)


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"\xff\r\n"])
def test_unknown_encoding_gets_415(encoding):
    """The refusal names those that are known (F6)."""
    with pytest.raises(UnsupportedEncoding, match="gzip, deflate and identity are") as caught:
        inflate(b"x", encoding, LIMIT)

    assert caught.value.status == 415
    assert "\n" not in caught.value.message


MULTIPART = "multipart/form-data; boundary=b"
URLENCODED = "application/x-www-form-urlencoded; charset=utf-8"
NAMES = st.sampled_from(["m", "other", "name=m", ""])


@given(st.lists(st.tuples(NAMES, st.text()), max_size=4))
def test_field_of_an_urlencoded_form_is_the_workers(fields):
    """The value is the one that the handler gets, and there is none where the handler gets none."""
    body = urlencode(fields).encode()
    values = parse_urlencoded(body).get("m")

    assert form_field(body, URLENCODED, "m") == (None if values is None else values[0].decode())


PARTS = st.tuples(NAMES, st.binary().filter(lambda text: b"--b" not in text), st.booleans())


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_field_of_a_multipart_form_is_the_workers(parts):
    """Whatever stands around the field: files, other headers, empty and repeated parts."""
    head = {False: "Content-Disposition: form-data", True: "X-A: m\r\ncontent-DISPOSITION:form-data"}
    body = b"".join(
        f'--b\r\n{head[other]}; name="{name}"; filename="m"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content, other in parts
    )
    values = parse_multipart(body + b"--b--\r\n", MULTIPART).get("m")
    expected = None if values is None else values[0].decode("utf-8", "replace")

    assert form_field(body + b"--b--\r\n", MULTIPART, "m") == expected


NO_FORMS = [MULTIPART, "multipart/form-data", "multipart/mixed; boundary=b", "application/json", ""]


@given(st.binary() | st.just(b"absent=1"), st.sampled_from(NO_FORMS))
def test_body_that_is_no_form_has_no_field(body, content_type):
    """A damaged form has none, either; nothing is raised (F7, F70)."""
    assert form_field(body, content_type, "absent") is None


def test_endless_form_is_not_searched_to_its_end():
    """Of more parts than a worker takes, and of endless part headers or options, none is found (F7)."""
    part = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\nv\r\n'
    many = part % b"x" * 1000 + part % b"m"
    long = (part % b"m").replace(b"--b\r\n", b"--b\r\nX: " + b";" * 10_000 + b"\r\n")
    options = (part % b"m").replace(b"form-data", b"form-data; a" * 20)

    values = [form_field(form + b"--b--\r\n", MULTIPART, "m") for form in (many, long, options, part % b"m")]
    assert values == [None, None, None, "v"]
    assert form_field(b"", "multipart/form-data; " + "a;" * 30_000, "name") is None


@pytest.mark.alone
@pytest.mark.parametrize("body", [b"&" * 2_000_000, b"name=" + b"%41" * 1_000_000, b"&name=" * 500_000])
def test_large_form_is_searched_in_little_time(body):
    """What it has in it is not decoded: that alone would take longer."""
    started = time.process_time()
    form_field(body, "application/x-www-form-urlencoded", "name")
    searched = time.process_time()
    body.replace(b"&", b"%26").split(b"%")

    assert searched - started < time.process_time() - searched
