import pytest

from modelserver.tools.serve.session import display


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (b'[\n  1,\n  "\xc3\xa9"\n]', "application/json", '[1, "é"]'),
        (b"plain", None, "plain"),
        (b"\xff\xfe", "image/png", "2 bytes of image/png"),
        (b"\xff", None, "1 bytes"),
        (b"x" * 2001, None, "x" * 2000 + "… (2001 bytes)"),
    ],
)
def test_answers_are_displayed_by_their_type(content, kind, text):
    assert display(content, kind) == text
