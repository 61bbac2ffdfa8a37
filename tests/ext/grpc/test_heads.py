from urllib.parse import unquote

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.grpc.heads import OK_HEAD, OK_TRAILERS, fields_of, http_head, read_head, trailers
from modelserver.ext.grpc.statuses import StatusCode

USUAL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/package.Service/Method"),
    (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


def fields_in(block):
    return [tuple(each) for each in Decoder().decode(block)]


def test_metadata_are_decoded_in_order():
    head = read_head(
        [
            *USUAL[:4],
            (b"content-type", b"application/grpc+proto"),
            (b"grpc-encoding", b"gzip"),
            (b"grpc-accept-encoding", b"gzip"),
            (b"user-agent", b"me"),
            (b"x-request-id", b"\xe4"),
            (b"a-bin", b"AAE"),
            (b"b-bin", b"AAE="),
            (b"c-bin", b"A"),
        ]
    )

    assert head.encoding == "gzip"
    assert head.metadata == (
        ("user-agent", "me"),
        ("x-request-id", "\xe4"),
        ("a-bin", b"\0\1"),
        ("b-bin", b"\0\1"),
        ("c-bin", b""),
    )


@pytest.mark.parametrize(
    ("data", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"30S", 30), (b"1500m", 1.5), (b"99999999u", 99.999999), (b"1n", 1e-9)],
)
def test_timeout_is_read_with_its_unit(data, seconds):
    assert read_head([*USUAL, (b"grpc-timeout", data)]).timeout == pytest.approx(seconds)


@pytest.mark.parametrize("data", [b"123456789S", b"5", b"-5S", b"5 S", b"1s", b"1.5S", b"\xb2S", b"S", b""])
def test_malformed_timeouts_are_refused(data):
    assert read_head([*USUAL, (b"grpc-timeout", data)]).wrong == 400


@pytest.mark.parametrize(
    ("field", "status"),
    [
        ((b":method", b"GET"), 405),
        ((b"content-type", b"application/json"), 415),
        ((b"content-type", b"application/grpcx"), 415),
        ((b"content-type", b"application/grpc; charset=utf-8"), 0),
        ((b"content-type", b"application/grpc+json"), 415),
        ((b"x", b"a\tb \xff"), 0),
    ],
)
def test_other_method_or_content_is_refused(field, status):
    others = [each for each in USUAL if each[0] != field[0]]
    assert read_head([*others, field]).wrong == status


def test_answers_have_their_fields():
    assert fields_in(OK_HEAD) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity,deflate,gzip"),
    ]
    assert fields_in(OK_TRAILERS) == [("grpc-status", "0")]
    assert fields_in(http_head(415)) == [(":status", "415")]
    assert fields_in(http_head(400)) == [
        (":status", "400"),
        ("content-type", "application/grpc"),
        ("grpc-status", "13"),
        ("grpc-message", "malformed grpc-timeout"),
    ]
    assert fields_in(fields_of((("x-batch-id", "7"), ("a", "\u20ac")))) == [("x-batch-id", "7"), ("a", "?")]


@given(st.text())
def test_message_of_any_text_is_printable_ascii(text):
    result = dict(fields_in(trailers(StatusCode.NOT_FOUND, text)))

    assert result["grpc-status"] == "5"
    data = result.get("grpc-message", "")
    assert all(" " <= each <= "~" for each in data)
    assert unquote(data) == text.encode("utf-8", "replace").decode()
