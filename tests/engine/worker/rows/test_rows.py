import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.wire.messages import BODY, FIELDS, INSTANCE, Row
from modelserver.engine.worker.rows.rows import decode_row, load_json, request_headers
from modelserver_handlers.envelopes import Instance

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def decode(body, content_type="", *, kind=BODY, on=True, **more):
    row = Row("id", len(body), kind, content_type, **more)
    return decode_row(row, memoryview(body), decode=on)


def body_of(body, content_type="", *, on=True):
    data = decode(body, content_type, on=on).data
    assert list(data) == ["body"]
    return data["body"]


@given(JSON_VALUES)
def test_json_is_read_as_python_reads_it(value):
    text = json.dumps(value).encode()
    assert repr(load_json(text)) == repr(json.loads(text))


@given(st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_json_or_a_value_error(text):
    """What the standard decoder takes is taken, all else is a ValueError (F2)."""
    try:
        expected = json.loads(text)
    except (ValueError, RecursionError):
        with pytest.raises(ValueError):  # noqa: PT011 - the decoders' own words
            load_json(text)
    else:
        assert repr(load_json(text)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9007199254740993", 9007199254740993),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b"Infinity", math.inf),
        (b"NaN", math.nan),
        (b"1e400", math.inf),
        (b'"\\ud800"', "\ud800"),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
    ],
)
def test_unusual_json_is_read_exactly(text, value):
    """Large integers keep every digit; what Python's decoder accepts beyond the standard is accepted (F4)."""
    assert repr(load_json(text)) == repr(value)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000 + b"]" * 100_000, b"1" * 5000, b'{"a":' * 100_000, b"", b"\0"]
)
def test_hostile_json_is_a_value_error(text):
    """Nesting without end and numbers without end are refused, not crashed on (F1, F3, F4)."""
    with pytest.raises(ValueError):  # noqa: PT011 - the decoders' own words
        load_json(text)


# -- bodies (reference 7.1, 7.2)


@pytest.mark.parametrize(
    ("body", "content_type"), [(b"{no json", "application/json"), (b"\xff\xfe", "text/plain")]
)
def test_undecodable_bodies_are_bytearrays_with_a_warning(body, content_type, caplog):
    """A body that is not what its type says reaches the handler as it came, and the log says why (F2)."""
    value = body_of(body, content_type)

    assert type(value) is bytearray
    assert value == body
    assert content_type in caplog.text


def test_bodies_do_not_point_into_the_frame():
    frame = bytearray(b"abcdef")
    row = Row("id", 3)
    data = decode_row(row, memoryview(frame)[:3], decode=True).data

    frame[:3] = b"xyz"

    assert data["body"] == b"abc"


def test_urlencoded_forms_are_known_in_any_case():
    """As in TorchServe, case does not count; ``curl -d '{"a":1}'`` sends the JSON as the name of a field."""
    assert decode(b"a=1", "Application/X-WWW-Form-Urlencoded; charset=UTF-8").data == {"a": bytearray(b"1")}

    assert decode(b'{"a":1}', "application/x-www-form-urlencoded").data == {'{"a":1}': bytearray()}


def test_query_parameters_come_first_and_fields_win():
    query = [("a", "query"), ("b", "ü")]

    decoded = decode(b"a=form", "application/x-www-form-urlencoded", query=query)

    assert decoded.data == {"a": bytearray(b"form"), "b": bytearray("ü".encode())}
    assert decode(b"x", query=query).data["body"] == b"x"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (b'{"data": "x", "target": 0}', {"data": "x", "target": 0}),
        (b"[1, 2]", {"body": [1, 2]}),
        (b"null", {"body": None}),
        (b"12345678901234567890123", {"body": 12345678901234567890123}),
    ],
)
def test_instances_are_dicts_or_become_bodies(text, data):
    assert decode(text, kind=INSTANCE, on=False).data == data


# -- headers and parameters (reference 7.3)


def test_headers_keep_case_and_the_last_of_a_name():
    raw = msgspec.Raw(msgspec.msgpack.encode([(b"X-Foo", b"1"), (b"X-Foo", b"2"), (b"x-bar", b"\xfc")]))
    row = Row("id", 0, headers=raw)

    assert dict(request_headers(row, {})) == {"X-Foo": "2", "x-bar": "ü"}

    assert request_headers(Row("id", 0, INSTANCE), decode(b'{"a": 1}', kind=INSTANCE).part_types) == []


def test_each_part_has_a_header_of_its_type():
    decoded = decode(b'{"a": 1}', "application/json; charset=utf-8")
    row = Row("id", 0, content_type="application/json")
    raw = msgspec.Raw(msgspec.msgpack.encode([(b"body", b"own")]))

    assert dict(request_headers(row, decoded.part_types)) == {"body": {"content-type": "application/json"}}
    assert dict(request_headers(Row("id", 0, headers=raw), decoded.part_types)) == {"body": "own"}
    assert dict(request_headers(row, decode(b"x").part_types)) == {"body": {"content-type": ""}}


@pytest.mark.parametrize("value", [1, {"body": 2}, [None]])
def test_instances_stay_what_they_are_for_an_envelope(value):
    body = json.dumps(value).encode()
    result = decode_row(Row("id", len(body), INSTANCE), memoryview(body), decode=True, enveloped=True)

    assert result.data == Instance(value)

    row = Row("id", 3, BODY, "application/json")

    assert decode_row(row, memoryview(b"[1]"), decode=True, enveloped=True).data == {"body": [1]}


def test_fields_are_bytes():
    """Nothing is decoded, whatever it looks like; a field has an empty content type (reference 20)."""
    body = msgspec.msgpack.encode({"data": b'{"a": 1}', "ü": b""})

    decoded = decode_row(Row("id", len(body), FIELDS), memoryview(body), decode=True)

    assert decoded.data == {"data": bytearray(b'{"a": 1}'), "ü": bytearray()}
    assert {type(value) for value in decoded.data.values()} == {bytearray}
    assert decoded.part_types == {"data": "", "ü": ""}
