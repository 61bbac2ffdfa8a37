"""Ids for requests and batches."""

from __future__ import annotations

import itertools
import random
import re

# Every request needs an id, and :mod:`uuid` would take a tenth of its time. So the first four groups are
# random once per process, and the last runs through its 2**48 values, in blocks of 256 that share its first
# five bytes; from one block to the next, these take large steps.
_BITS = 40
_MASK = (1 << _BITS) - 1
_STEP = 0x9E_3779_B97F  # odd: every value comes once before any comes again
_LAST_BYTES = [f"{number:02x}" for number in range(256)]


def _draw_groups() -> str:
    drawn = random.SystemRandom().getrandbits(80)
    version_4 = (drawn & ~(0xF << 28) & ~(0xC << 12)) | (0x4 << 28) | (0x8 << 12)
    text = f"{version_4:020x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:]}-"


_groups = _draw_groups()


def _block(number: int) -> list[str]:
    head = f"{_groups}{number * _STEP & _MASK:010x}"
    return [head + last for last in _LAST_BYTES]


_blocks = map(_block, itertools.count(random.SystemRandom().getrandbits(_BITS)))
make_uuid = itertools.chain.from_iterable(_blocks).__next__
"""Returns an id in the form of a version 4 UUID, unique over all calls and processes."""


_USABLE = re.compile(rb"[!-~]{1,128}")


def accept_request_id(client_id: bytes = b"") -> str:
    """The client's id if it is printable ASCII of at most 128 characters, otherwise a new one.

    So neither line breaks nor escape sequences can get into headers and logs.
    """
    return client_id.decode("ascii") if _USABLE.fullmatch(client_id) else make_uuid()
