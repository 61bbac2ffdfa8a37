import numpy as np
import pytest

from modelserver.testing.answer import Answer, as_body


@pytest.mark.parametrize(
    ("value", "body", "kind"),
    [
        (b"\x00", b"\x00", ""),
        (bytearray(b"a"), b"a", ""),
        ("é", "é".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        (np.ones((1, 2), np.float32), b"[[1.0,1.0]]", "application/json"),
    ],
)
def test_values_and_files_become_bodies(value, body, kind, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b").write_bytes(b"b")

    assert as_body(value) == (body, kind)
    assert as_body(tmp_path / "a.png") == (b"\x89PNG", "image/png")
    assert as_body(tmp_path / "b") == (b"b", "")


def test_headers_are_read():
    response = Answer(200, {"x-batch-size": "3", "server-timing": "queue;dur=1.5, inference;dur=2.25"}, b"1")

    assert (response.batch_size, response.handling_ms, response.json(), response.text) == (3, 2.25, 1, "1")
    assert (Answer(200, {}, b"").batch_size, Answer(200, {}, b"").handling_ms) == (0, 0.0)
    assert [Answer(status, {}, b"").ok for status in (200, 404)] == [True, False]
    assert not Answer(200, {}, b"", complete=False).ok
