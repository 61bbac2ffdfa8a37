"""Requests of inference, whatever brought them."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver.errors import ServiceUnavailable
from modelserver.surface.http.exchange import Exchange, Target, read_target


class Kept(Exchange):
    """Keeps its answer."""

    __slots__ = ("given",)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    def packed_headers(self) -> bytes:
        return b"\x90"

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        self.given = status, body, content_type, extra

    def begin(self, *_: Any) -> None:
        raise NotImplementedError

    def send(self, part: bytes) -> None:
        raise NotImplementedError

    def end(self, complete: bool = True) -> None:
        raise NotImplementedError

    def unsent(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (b"/a/b", Target("/a/b", b"", "/a/b")),
        (b"/a%20b?x=%20", Target("/a b", b"x=%20", "/a%20b?x=%20")),
        (b"http://host:1/a?", Target("/a", b"", "/a")),
        (b"/\xc3\xa4", None),
        (b"a b", None),
    ],
)
def test_targets(url: bytes, target: Target | None) -> None:
    """The path is decoded, the text is what was sent; what is no URL has none."""
    assert read_target(url) == target


def test_an_error_is_answered_with_its_headers() -> None:
    """Each as a line behind those that are given."""
    exchange = Kept(Target("/", b"", "/"), b"GET", "1.1")
    exchange.fail(ServiceUnavailable("later"), extra=b"x: y\r\n")

    status, body, content_type, extra = exchange.given
    assert (status, content_type, extra) == (503, "application/json", b"x: y\r\nretry-after: 1\r\n")
    assert b"later" in body
