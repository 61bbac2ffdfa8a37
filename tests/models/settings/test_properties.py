from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.opcodes import opcodes_of

from modelserver.errors import ConfigError
from modelserver.models.settings.properties import dump, line_numbers, parse, substitute


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key=value", {"key": "value"}),
        ("key:value", {"key": "value"}),
        ("key value", {"key": "value"}),
        ("key \t= value", {"key": "value"}),
        ("  key = a=b:c d ", {"key": "a=b:c d "}),
        ("key", {"key": ""}),
        ("key=", {"key": ""}),
        ("=value", {"": "value"}),
        ("# note\n  ! note\n\n \t\nkey=value", {"key": "value"}),
        ("key=1\nkey=2", {"key": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\ b\\=c\\:d=value", {"a b=c:d": "value"}),
        (r"key=http\://host\:80\\x", {"key": "http://host:80\\x"}),
        (r"key=a\tb\nc\rd\fe\q", {"key": "a\tb\nc\rd\feq"}),
        (r"key=\u00e9\ud83d\ude00", {"key": "é😀"}),
        (r"key=\ud83d!", {"key": "\ufffd!"}),
        ("key=a\\\n   b\\\n\tc\nother=1", {"key": "abc", "other": "1"}),
        ("key=a\\\\\nother=1", {"key": "a\\", "other": "1"}),
        ("key=a\\\n# not a comment", {"key": "a# not a comment"}),
        ("key=a\\\n\nother=1", {"key": "a", "other": "1"}),
        ("key=a\\", {"key": "a"}),
        ("# a comment does not continue \\\nkey=1", {"key": "1"}),
        ("\\", {}),
        ("", {}),
    ],
)
def test_java_syntax_is_read(text, expected):
    """Separators, comments, continuations and escapes are those of Java."""
    assert parse(text.encode()) == expected


def test_text_is_read_as_java_and_editors_do():
    """Bytes that are no UTF-8 are ISO-8859-1; a byte order mark is dropped."""
    text = 'models={\\\n  "noop": {\\\n    "1.0": {\\\n      "batchSize": 4\\\n    }\\\n  }\\\n}\n'
    assert parse(text.encode()) == {"models": '{"noop": {"1.0": {"batchSize": 4}}}'}

    assert parse("key=é".encode()) == {"key": "é"}
    assert parse("key=é".encode("latin-1")) == {"key": "é"}
    assert parse("key=é".encode("utf-8-sig")) == {"key": "é"}

    text = "! one\n\na=1\r\nb=2\\\n  # and more\n\r\nc=3\na=4\\"
    assert line_numbers(text.encode()) == {"a": 8, "b": 4, "c": 7}


@pytest.mark.parametrize("text", [r"key=\u12", r"key=\uxyz0", r"key=\u"])
def test_a_malformed_code_is_an_error(text):
    text = f"# one\nbefore=\\\n  two\n{text}"
    with pytest.raises(ConfigError, match=r"four hexadecimal digits .*\(line 4\)"):
        parse(text.encode())


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_dumped_is_read_back(values):
    text = dump(values)
    assert text.isascii()
    assert parse(text.encode()) == values


def test_large_value_is_not_escaped_letter_by_letter():
    """Each registration writes a snapshot of all models."""
    value = '{"model": 1}\n' * 10_000
    few, many = (opcodes_of(partial(dump, {"state": text})) for text in (value[:100], value))

    assert many == few


@given(st.binary())
def test_any_bytes_are_read_or_refused(data):
    """Fuzzed files end in values or in ConfigError, in nothing else (F70)."""
    try:
        values = parse(data)
    except ConfigError:
        return
    assert parse(dump(values).encode()) == values


def test_variables_are_substituted():
    """$$NAME$$ anywhere in a value is the environment variable; single dollars stay."""
    environ = {"HOST": "h", "PORT": "80"}
    assert substitute("http://$$HOST$$:$$PORT$$/$x$$", environ) == "http://h:80/$x$$"

    with pytest.raises(ConfigError, match=r"^Invalid configuration: Invalid Environment Variable NOPE$"):
        substitute("a$$NOPE$$", {})
