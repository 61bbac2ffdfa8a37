from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.telemetry.text import indented_lines, one_line, shortened, without_credentials


@given(st.text())
def test_one_line_stays_one_line(text):
    """Whatever the text, it stays on one line and holds no terminal control (F13)."""
    line = one_line(text)

    assert len(line.splitlines()) <= 1
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line)


@given(st.text())
def test_further_lines_are_indented(text):
    """No line but the first begins at the margin, so none passes for a log entry (F13)."""
    first, *others = indented_lines(text).split("\n")

    assert all(line.startswith("    ") for line in others)
    assert len(first.splitlines()) <= 1


def test_escapes_are_readable():
    """Escapes say what was there; other languages and emoji are left as they are."""
    assert one_line("a\nb\r\tc\x1b[31m\u2028") == r"a\nb\r\tc\x1b[31m\u2028"
    assert one_line("é\u202e 漢字 🙂") == r"é\u202e 漢字 🙂"
    assert one_line("a\tb\n", keep_tabs=True) == "a\tb\\n"


def test_long_text_is_cut():
    """What is cut is counted."""
    assert shortened("abc", 3) == "abc"
    assert shortened("abcdef", 3) == "abc... (3 more characters)"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/models?url=https://u:p@h/m.mar&x=1", "/models?url=https://***@h/m.mar&x=1"),
        ("/models?url=https://token@h/m.mar", "/models?url=https://***@h/m.mar"),
        ("/models?url=https://u:p%2Fw@h/m.mar", "/models?url=https://***@h/m.mar"),
        ("/models?url=https%3A%2F%2Fu:p%40h%2Fm%40.mar", "/models?url=https%3A%2F%2F***%40h%2Fm%40.mar"),
        ("/models?url=https%3a%2f%2fu%3ap@h%2fm", "/models?url=https%3a%2f%2f***@h%2fm"),
        ("/models?url=http://u:a@b@h/m", "/models?url=http://***@h/m"),
        ("/models?url=http://h/m@2.mar&q=a@b", "/models?url=http://h/m@2.mar&q=a@b"),
        ("/predictions/m?mail=a@b.c", "/predictions/m?mail=a@b.c"),
    ],
)
def test_credentials_are_masked(text, masked):
    """User and password of a URL never reach a log, percent-encoded or not."""
    assert without_credentials(text) == masked


def test_masking_is_quick_on_hostile_text():
    """Masking takes time in proportion to the text, whatever it is (the test's time limit would tell)."""
    for text in ("%3A%2F%2F" * 20_000, "://" * 50_000, "://" + "a" * 200_000, ":" * 200_000):
        assert without_credentials(f"{text} ") == f"{text} "
