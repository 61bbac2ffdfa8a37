import pytest

from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.wire.messages import LoadFailed, sendable


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain ü", "plain ü"), (404, "404"), (None, "None"), ("a\ud800b", "a?b"), ("\udcff", "?")],
)
def test_sendable_text_always_has_a_form_on_the_wire(value, text):
    stream = b"".join(encode(LoadFailed(sendable(value))))

    assert sendable(value) == text
    assert [message for message, _ in FrameReader(to_server_decoder).feed(stream)] == [LoadFailed(text)]
