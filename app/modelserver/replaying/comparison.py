"""Whether an answer is the recorded one: byte by byte, or number by number within a tolerance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from modelserver.agreement import agree, pairs, place, short, shown
from modelserver.tensors.datatypes import DATATYPES

if TYPE_CHECKING:
    from modelserver.agreement import Tolerance
    from modelserver.http.client import Answered
    from modelserver.recording.entries import Call

# What differs from one answer to the next anyway.
_ANEW: Final = frozenset({"batchId", "request_id"})


def difference(call: Call, answered: Answered, tolerance: Tolerance) -> str:
    """How the answer differs from the recorded one; empty if it does not."""
    if answered.fault:
        return answered.fault
    if answered.status != call.status:
        return f"status {call.status} became {answered.status}: {_text(answered.body)}"
    if answered.body == call.answer:
        return ""
    then, now = _parsed(call.answer), _parsed(answered.body)
    if then is None or now is None:
        return f"{_text(call.answer)} became {_text(answered.body)}"
    (then_json, then_rest), (now_json, now_rest) = then, now
    ignored = _ANEW if _names_id(call) else _ANEW | {"id"}
    for document in (then_json, now_json):
        if isinstance(document, dict):
            for name in ignored & document.keys():
                del document[name]
    for path, before, after in pairs(then_json, now_json):
        if not agree(before, after, tolerance):
            where = f"{place(path)}: " if path else ""
            return f"{where}{shown(before)} became {shown(after)}"
    return _rests(then_json, then_rest, now_rest, tolerance)


def _names_id(call: Call) -> bool:
    """Whether the request had an id, which the answer of the Open Inference Protocol repeats."""
    return call.target.startswith("/v2/") and b'"id"' in call.body


def _parsed(body: bytes) -> tuple[Any, bytes] | None:
    """The JSON that the body begins with, and what follows, as in the binary form of V2."""
    try:
        text = body.decode("latin-1")
        _, end = json.JSONDecoder().raw_decode(text)
        return json.loads(body[:end]), body[end:]
    except (ValueError, RecursionError):
        return None


def _rests(document: Any, then: bytes, now: bytes, tolerance: Tolerance) -> str:
    """The tensors after the JSON, where they are numbers of equal shapes."""
    if then == now:
        return ""
    if len(then) != len(now):
        return f"{len(then)} bytes of tensors became {len(now)}"
    start = 0
    for output in document.get("outputs", ()) if isinstance(document, dict) else ():
        size = (output.get("parameters") or {}).get("binary_data_size", 0)
        kind = DATATYPES.get(output.get("datatype", ""))
        one, other = then[start : start + size], now[start : start + size]
        start += size
        if one == other:
            continue
        if kind is None or kind.json_type is bool or size % kind.width:
            return f"output {output.get('name')}: its bytes differ"
        both = (kind.unpack(memoryview(data)) for data in (one, other))
        for at, (a, b) in enumerate(zip(*both, strict=True)):
            if not tolerance.admits(a, b):
                return f"output {output.get('name')}[{at}]: {a:g} became {b:g}"
    return "" if start == len(then) else "the bytes after the JSON differ"


def _text(body: bytes) -> str:
    return short(repr(" ".join(body.decode("utf-8", "replace").split())))
