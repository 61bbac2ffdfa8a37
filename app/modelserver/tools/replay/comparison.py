"""Whether an answer is the recorded one: byte by byte, or number by number within a tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from modelserver.engine.tensors.datatypes import DATATYPES
from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.recording.entries import code_of
from modelserver.ext.rollout.agreement import agree, pairs, place, short, shown
from modelserver.tools.replay.answers import body_of, document_of, gets_id

if TYPE_CHECKING:
    from modelserver.ext.recording.entries import Call
    from modelserver.ext.rollout.agreement import Tolerance
    from modelserver.surface.http.client import TimedResponse

# What differs from one answer to the next anyway.
_ANEW: Final = frozenset({"batchId", "request_id"})


def difference(call: Call, answered: TimedResponse, tolerance: Tolerance) -> str:
    """How the answer differs from the recorded one; empty if it does not."""
    if answered.fault:
        return answered.fault
    was, is_now = (_status(each.status, each.lines) for each in (call, answered))
    if was != is_now:
        return f"status {was} became {is_now}: {_text(answered.body)}"
    bodies = [body_of(call, each) for each in (call.answer, answered.body)]
    if bodies[0] == bodies[1] or call.method == b"HEAD":
        return ""
    then, now = (document_of(call, body) for body in bodies)
    if then is None or now is None:
        return " became ".join(map(_text, bodies))
    (then_json, then_rest), (now_json, now_rest) = then, now
    ignored = _ANEW | {"id"} if gets_id(call) else _ANEW
    for document in (then_json, now_json):
        if isinstance(document, dict):
            for name in ignored & document.keys():
                del document[name]
    for path, before, after in pairs(then_json, now_json):
        if not agree(before, after, tolerance):
            where = f"{place(path)}: " if path else ""
            return f"{where}{shown(before)} became {shown(after)}"
    return _rests(then_json, then_rest, now_rest, tolerance)


def _status(status: int, lines: bytes) -> str:
    """As the client got it: of HTTP, or of gRPC by its name."""
    code = code_of(lines)
    return str(status) if code is None else StatusCode(code).name


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
