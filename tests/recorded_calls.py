"""Recorded calls, for the tests of recordings and of what sends them again."""

from collections.abc import Callable

import msgspec
import pytest

from modelserver.ext.recording.entries import Call

_LINES = b"x-batch-id: b1\r\nx-batch-size: 2\r\nserver-timing: queue;dur=1.500, inference;dur=2.500"
_PLAIN = Call(
    1,
    1_000_000,
    4_000_000,
    b"POST",
    "/predictions/m?x=1",
    "m",
    None,
    [(b"content-type", b"text/plain")],
    b"question",
    200,
    "text/plain",
    _LINES,
    b"answer",
    0,
    True,
)


@pytest.fixture
def make_call() -> Callable[..., Call]:
    def make(**changes: object) -> Call:
        return msgspec.structs.replace(_PLAIN, **changes)

    return make
