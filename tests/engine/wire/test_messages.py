"""What the server and a worker say to each other."""

from typing import Any

import pytest

from modelserver.engine.wire.frames import (
    FrameReader,
    encode,
    to_server_decoder,
)
from modelserver.engine.wire.messages import (
    MAX_FRAME,
    LoadFailed,
    sendable,
)


def from_worker(stream: bytes, limit: int = MAX_FRAME) -> list[tuple[Any, bytes]]:
    return [(m, bytes(tail)) for m, tail in FrameReader(to_server_decoder, limit).feed(stream)]


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain ü", "plain ü"), (404, "404"), (None, "None"), ("a\ud800b", "a?b"), ("\udcff", "?")],
)
def test_sendable_text_always_has_a_form_on_the_wire(value, text):
    assert sendable(value) == text
    sent = encode(LoadFailed(sendable(value)))
    assert from_worker(b"".join(sent))[0][0] == LoadFailed(text)
