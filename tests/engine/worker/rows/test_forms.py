import contextlib
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.worker.rows.forms import MAX_PARTS, MalformedForm, parse_multipart, parse_urlencoded

FORM = "multipart/form-data; boundary=B"
CONTENT = st.binary(max_size=60).filter(lambda b: b"\r\n--" not in b)
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


def part(name, content, *, content_type="", disposition=""):
    lines = f'--B\r\nContent-Disposition: form-data; name="{name}"{disposition}\r\n'
    if content_type:
        lines += f"Content-Type: {content_type}\r\n"
    return lines.encode() + b"\r\n" + content + b"\r\n"


END = b"--B--\r\n"
WHOLE = part("a", b"x") + END
FILE = b'content-disposition: form-data; name="a"; filename=f'


@given(st.dictionaries(NAMES, CONTENT, min_size=1, max_size=5))
def test_parts_come_out_as_they_went_in(parts):
    body = b"".join(part(name, content) for name, content in parts.items()) + END
    assert parse_multipart(body, FORM) == {name: (content, "") for name, content in parts.items()}


@pytest.mark.parametrize(
    ("body", "content", "content_type"),
    [
        (b"--B\r\n" + FILE + b"\r\nContent-TYPE: a/b\r\n\r\nx\r\n", b"x", "a/b"),
        (part("a", b"{}", content_type="application/json"), b"{}", ""),
        (part("a", b"1") + part("a", b"2"), b"2", ""),
        (part("a", b"x", disposition='; filename="../../etc/passwd"'), b"x", "application/octet-stream"),
    ],
    ids=["file in any case", "no file has no type", "last of a name", "path"],
)
def test_parts_are_read_as_in_torchserve(body, content, content_type):
    """The last of a repeated name wins (F8). A path in a file name leads nowhere (F7)."""
    assert parse_multipart(body + END, FORM) == {"a": (content, content_type)}


@pytest.mark.parametrize("boundary", [' boundary="a b"', "boundary=a b"])
def test_boundaries_may_be_quoted(boundary):
    body = b'--a b\r\nContent-Disposition: form-data; name="n"\r\n\r\nx\r\n--a b--\r\n'
    assert parse_multipart(body, f"multipart/form-data;{boundary}") == {"n": (b"x", "")}


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        pytest.param(WHOLE, "multipart/form-data", "no boundary", id="no boundary"),
        pytest.param(WHOLE, "multipart/form-data; boundary=", "no boundary", id="empty boundary"),
        pytest.param(part("a", b"x"), FORM, "ends before", id="no final boundary"),
        pytest.param(b"", FORM, "ends before", id="empty body"),
        pytest.param(part("a", b"x")[:40], FORM, "ends before", id="cut in a header"),
        pytest.param(b"something else", FORM, "cannot be read", id="another text"),
        pytest.param(WHOLE, "multipart/form-data; boundary=C", "cannot be read", id="other boundary"),
        pytest.param(WHOLE, f"{FORM}{'B' * 100_000}", "cannot be read", id="huge boundary"),
        pytest.param(b"--B\r\n\r\nx\r\n" + END, FORM, "no name", id="no headers"),
        pytest.param(
            b"--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, FORM, "no name", id="no name"
        ),
        pytest.param(
            b"--B\r\nX: " + b"y" * 200_000 + b"\r\n\r\nx\r\n" + END, FORM, "cannot be", id="huge header"
        ),
    ],
)
def test_broken_forms_are_malformed(body, content_type, message):
    """A form without boundary, end or names is refused with a sentence that says so (F7)."""
    with pytest.raises(MalformedForm, match=message):
        parse_multipart(body, content_type)


def test_number_of_parts_is_limited():
    """A thousand parts are read, ten thousand are not (F7, F14)."""
    most = b"".join(part(str(i), b"") for i in range(MAX_PARTS)) + END
    assert len(parse_multipart(most, FORM)) == MAX_PARTS
    with pytest.raises(MalformedForm, match="1000"):
        parse_multipart(part("a", b"") * 10_000 + END, FORM)
    assert len(parse_urlencoded(b"&".join(b"%d=" % i for i in range(MAX_PARTS)))) == MAX_PARTS
    with pytest.raises(MalformedForm, match="10000 fields"):
        parse_urlencoded(b"&".join([b"a=1"] * 10_000))


@given(st.binary(max_size=120), st.text(max_size=30))
def test_any_bytes_are_a_form_or_malformed(body, boundary):
    """Random bytes under a random boundary raise nothing but MalformedForm (F70)."""
    content_type = f"multipart/form-data; boundary={boundary}".encode("latin-1", "replace").decode("latin-1")
    for text in (body, b"--B\r\n" + body, part("a", body) + body):
        for kind in (FORM, content_type):
            with contextlib.suppress(MalformedForm):
                parse_multipart(text, kind)


TEXTS = st.text(st.characters(codec="utf-8"))


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_urlencoded_fields_come_out_as_they_went_in(fields):
    expected = {name: (value.encode(), "") for name, value in fields.items()}
    assert parse_urlencoded(urlencode(fields).encode()) == expected


def test_field_without_an_equals_sign_is_a_name():
    assert parse_urlencoded(b"a=1&a=2") == {"a": (b"2", "")}
    assert parse_urlencoded(b"x&&y=%zz&%ff=1") == {"x": (b"", ""), "y": (b"%zz", ""), "\ufffd": (b"1", "")}
