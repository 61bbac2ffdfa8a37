"""The Java ``.properties`` format of config.properties and snapshots (reference 3.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from modelserver.errors import ConfigError

BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
_CODE_UNIT = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The backslash first, which is a part of the others.
_NAMED = {**{letter: letter for letter in "\\=:#!"}, **{value: name for name, value in _ESCAPES.items()}}
_OTHERS = re.compile(r"[^ -~]")


def parse(data: bytes) -> dict[str, str]:
    """The keys and values of a file; if a key is repeated, the last one counts.

    Valid UTF-8 is read as UTF-8, everything else as ISO-8859-1, as Java does. Raises ConfigError for a
    malformed ``\\uXXXX``.
    """
    return {key: value for _, key, value in _read(data)}


def line_numbers(data: bytes) -> dict[str, int]:
    """The line of each key's last occurrence in a file that :func:`parse` accepts."""
    return {key: number for number, key, _ in _read(data)}


def _read(data: bytes) -> Iterator[tuple[int, str, str]]:
    """The line of each key, the key, and its value."""
    for number, line in _logical_lines(_decode(data)):
        try:
            yield number, *_split(line)
        except ConfigError as error:  # noqa: PERF203 - it ends the loop
            raise ConfigError(f"{error} (line {number})") from None


def dump(values: Mapping[str, str]) -> str:
    """The values as a file in pure ASCII that ``parse`` reads back unchanged."""
    keys = [_escape(key).replace(" ", "\\ ") for key in values]
    return "".join(f"{key}={_escape_value(each)}\n" for key, each in zip(keys, values.values(), strict=True))


def substitute(value: str, environ: Mapping[str, str]) -> str:
    """Replaces every ``$$NAME$$`` by the environment variable. Raises ConfigError if it is not set."""

    def lookup(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise ConfigError(f"Invalid configuration: Invalid Environment Variable {name}")
        return environ[name]

    return _VARIABLE.sub(lookup, value)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines joined with their continuations, without comments and blank lines, and where each begins."""
    parts: list[str] = []
    continued = False
    begin = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(BLANKS)
        if not continued and (not line or line[0] in "#!"):
            continue
        if not continued:
            begin = number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if continued else line)
        if not continued:
            yield begin, "".join(parts)
            parts = []
    if any(parts):
        yield begin, "".join(parts)


def _split(line: str) -> tuple[str, str]:
    end = _key_end(line)
    rest = line[end:].lstrip(BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(BLANKS)
    return _unescape(line[:end]), _unescape(rest)


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=:" + BLANKS:
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        backslash = text.find("\\", position)
        if backslash < 0 or backslash + 1 == len(text):
            pieces.append(text[position : backslash if backslash >= 0 else None])
            break
        pieces.append(text[position:backslash])
        letter = text[backslash + 1]
        position = backslash + 2
        if letter == "u":
            pieces.append(_code_unit(text, position))
            position += 4
        else:
            pieces.append(_ESCAPES.get(letter, letter))
    # Surrogates that were written one by one are joined.
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _code_unit(text: str, position: int) -> str:
    digits = _CODE_UNIT.match(text, position)
    if digits is None:
        escape = text[position - 2 : position + 4]
        raise ConfigError(f"Invalid configuration: {escape}: four hexadecimal digits must follow \\u")
    return chr(int(digits[0], 16))


def _escape_value(value: str) -> str:
    escaped = _escape(value)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape(text: str) -> str:
    # Not letter by letter: the snapshot of a thousand models has 400 kB.
    for letter, name in _NAMED.items():
        text = text.replace(letter, "\\" + name)
    return _OTHERS.sub(_code_units, text)


def _code_units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
