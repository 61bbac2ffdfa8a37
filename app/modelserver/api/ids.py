"""Request ids: the client's where it gives a usable one, otherwise our own."""

from __future__ import annotations

import random
import re

_USABLE = re.compile(rb"[!-~]{1,128}")
_random = random.Random()  # noqa: S311 - ids tell requests apart, they guard nothing
_VERSION_4 = ~(0xF000 << 64) & ~(0xC000 << 48)


def make_request_id() -> str:
    """A version 4 UUID."""
    bits = (_random.getrandbits(128) & _VERSION_4) | (0x4000 << 64) | (0x8000 << 48)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def accept_request_id(given: bytes) -> str:
    """The client's id if it is printable ASCII of at most 128 characters, otherwise a new one.

    What is echoed into headers and logs can then hold neither line breaks nor escape sequences.
    """
    return given.decode("ascii") if _USABLE.fullmatch(given) else make_request_id()
