"""The trace of a caller (W3C Trace Context, Baggage), for what the server asks others on its behalf."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
_BESIDE = (b"tracestate", b"baggage")
_TEXT = re.compile(rb"[ -~\t]+")
# Of one header; baggage has at most as many by its standard.
_LONGEST = 8192


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """The caller's `traceparent`, `tracestate` and `baggage` as headers; none without a valid `traceparent`.

    What is too long, or not printable ASCII, is left out.
    """
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(value)
    parents = values.get(b"traceparent", ())
    if len(parents) != 1 or len(parents[0]) > _LONGEST or _PARENT.fullmatch(parents[0]) is None:
        return ()
    beside = [(name, b",".join(values[name])) for name in _BESIDE if name in values]
    return (
        ("traceparent", parents[0].decode()),
        *(
            (name.decode(), value.decode())
            for name, value in beside
            if len(value) <= _LONGEST and _TEXT.fullmatch(value)
        ),
    )
