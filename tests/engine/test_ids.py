import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.ids import accept_request_id, make_uuid


def test_made_ids_are_distinct_version_4_uuids():
    ids = [make_uuid() for _ in range(5000)]

    assert len(set(ids)) == 5000
    for text in ids:
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (4, uuid.RFC_4122)


@pytest.mark.parametrize("client_id", [b"a", b"req-1/2:3", b"~" * 128])
def test_usable_id_of_a_client_stays(client_id):
    assert accept_request_id(client_id) == client_id.decode()


@given(
    st.sampled_from(
        [b"", b"x" * 129, b"a b", b"a\r\nx: y", b"a\n", b"\x1b[31m", b"\xc3\xbc", b"a\x00", b"\x7f"]
    )
    | st.binary(max_size=5).map(lambda b: b + b"\n")
)
def test_unusable_id_is_replaced(client_id):
    """Line breaks, escapes, blanks and overlong ids never reach headers or logs (F13)."""
    text = accept_request_id(client_id)
    assert uuid.UUID(text).version == 4
