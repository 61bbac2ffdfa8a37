"""Heads of calls, and the header fields of their answers."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hpack.hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from modelserver.grpc.codes import StatusCode
from modelserver.grpc.heads import OK_HEAD, OK_TRAILERS, Head, fields_of, http_head, read_head, trailers

_USUAL = {":method": "POST", ":path": "/s/m", "te": "trailers", "content-type": "application/grpc"}


def fields(**more: str) -> list[tuple[bytes, bytes]]:
    """The usual ones of a call, and these: `grpc_timeout` is `grpc-timeout`."""
    given = _USUAL | {name.replace("_", "-"): value for name, value in more.items()}
    return [(name.encode(), value.encode("latin-1")) for name, value in given.items()]


def read_back(block: bytes) -> list[tuple[str, str]]:
    """The fields of an answer as clients read them."""
    found = Decoder().decode(block, raw=True)
    return [(bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in found]


def test_a_call() -> None:
    """It has a path, and no more than that."""
    head = read_head(fields())

    assert head == Head("s/m", (), None, "identity", 0)


def test_metadata() -> None:
    """What is neither HTTP's nor gRPC's own, in the client's order; names that end in -bin are bytes."""
    given = fields(a="1", b_bin="AP8", grpc_encoding="gzip", user_agent="x", c_bin="AP8=", d_bin="!")
    head = read_head([*given, (b"a", b"2")])

    assert head.metadata == (
        ("a", "1"),
        ("b-bin", b"\0\xff"),
        ("user-agent", "x"),
        ("c-bin", b"\0\xff"),
        ("d-bin", b""),
        ("a", "2"),
    )
    assert head.encoding == "gzip"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2H", 7200.0),
        ("3M", 180.0),
        ("4S", 4.0),
        ("5m", 0.005),
        ("6u", 6e-6),
        ("7n", 7e-9),
        ("99999999S", 99999999.0),
        ("0S", 0.0),
        ("123456789S", None),
        ("S", None),
        ("-1S", None),
        ("1 S", None),
        ("1s", None),
        ("1.5S", None),
        ("", None),
        ("٣S".encode().decode("latin-1"), None),
    ],
)
def test_deadlines(text: str, seconds: float | None) -> None:
    """Up to eight digits and a unit; anything else is none."""
    assert read_head(fields(grpc_timeout=text)).timeout == (
        None if seconds is None else pytest.approx(seconds)
    )


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("application/grpc", 0),
        ("application/grpc+proto", 0),
        ("application/grpc;charset=utf-8", 0),
        ("application/grpc+json", 415),
        ("application/grpc-web", 415),
        ("application/json", 415),
        ("", 415),
    ],
)
def test_other_contents(content: str, wrong: int) -> None:
    """What is not gRPC gets an answer of HTTP."""
    assert read_head(fields(content_type=content)).wrong == wrong


def test_other_methods_of_http() -> None:
    """So does what is not posted, or has no fields at all."""
    assert read_head([(b":method", b"GET"), *fields()[1:]]).wrong == 405
    assert read_head([]).wrong == 405
    assert read_back(http_head(415)) == [(":status", "415")]


def test_answers() -> None:
    """Their heads and ends are what HTTP/2 and gRPC ask for."""
    assert read_back(OK_HEAD) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity,deflate,gzip"),
    ]
    assert read_back(OK_TRAILERS) == [("grpc-status", "0")]
    assert read_back(trailers(StatusCode.NOT_FOUND, "")) == [("grpc-status", "5")]
    assert read_back(fields_of((("x-batch-id", "7"), ("a", "é語")))) == [("x-batch-id", "7"), ("a", "é?")]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_messages_of_failures(text: str) -> None:
    """Clients read them as they were, whatever is in them: line breaks and other languages, but ASCII on the
    wire.
    """
    told = dict(read_back(trailers(StatusCode.INTERNAL, text)))

    assert unquote(told.get("grpc-message", "")) == text
    assert told.get("grpc-message", "").isascii()
    assert "\n" not in told.get("grpc-message", "")
