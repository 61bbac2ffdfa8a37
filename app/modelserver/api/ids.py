"""Request ids: the client's where it gives a usable one, otherwise our own."""

from __future__ import annotations

import re

from modelserver.ids import make_uuid as make_request_id

__all__ = ["accept_request_id", "make_request_id"]

_USABLE = re.compile(rb"[!-~]{1,128}")


def accept_request_id(given: bytes) -> str:
    """The client's id if it is printable ASCII of at most 128 characters, otherwise a new one.

    What is echoed into headers and logs can then hold neither line breaks nor escape sequences.
    """
    return given.decode("ascii") if _USABLE.fullmatch(given) else make_request_id()
