"""Makes untrusted text safe for one line of a log (F13)."""

from __future__ import annotations

import re

# C0, DEL and C1 controls, line separators, and the marks that reverse the reading direction.
_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_ESCAPES = {
    code: _SHORT.get(chr(code), f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _UNSAFE
}
_ESCAPES_BUT_TAB = {code: escape for code, escape in _ESCAPES.items() if code != ord("\t")}
_ESCAPES_BUT_LINES = {code: escape for code, escape in _ESCAPES_BUT_TAB.items() if code != ord("\n")}
_USERINFO = re.compile(r"((?::|%3A)//)[^/?#&\s]+(@|%40)", re.IGNORECASE)
_ENCODED_USERINFO = re.compile(r"((?::|%3A)(?:/|%2F){2})(?:(?!%2F)[^/?#&\s])+(@|%40)", re.IGNORECASE)


def one_line(text: str, *, keep_tabs: bool = False) -> str:
    r"""``text`` with control characters escaped (`\n`, `\x1b`), so that it stays on one line."""
    return text if text.isprintable() else text.translate(_ESCAPES_BUT_TAB if keep_tabs else _ESCAPES)


def indented_lines(text: str) -> str:
    """``text`` with line breaks, but further lines indented so that none looks like a new log entry."""
    return text.translate(_ESCAPES_BUT_LINES).replace("\n", "\n    ")


def shortened(text: str, limit: int) -> str:
    """``text``, cut to ``limit`` characters with a note of how many are missing."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def without_credentials(text: str) -> str:
    """``text`` with the user and password of URLs replaced by `***`, percent-encoded URLs too."""
    return _ENCODED_USERINFO.sub(r"\1***\2", _USERINFO.sub(r"\1***\2", text))
