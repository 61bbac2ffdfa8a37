"""The headers for sequences, of clients and handlers (reference 8.9).

``ts_request_sequence_id`` is the id. A request without it begins a sequence: it gets an id and a start
header, which the handler sees like the client's. Unlike in TorchServe:

* every answer has the id in the same header, so that a client that sent none can continue, and the first
  answer has ``ts_request_sequence_start: true``, so that a client notices that its earlier one had ended;
* a client may send ``ts_request_sequence_end: true``: the sequence ends after that request, and not only
  after being idle for long enough.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.batching.request import SequencedRequest, SequenceMark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from modelserver.engine.batching.request import Request
    from modelserver.engine.wire.messages import SequenceHeaders

unpack_headers = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
pack_headers = msgspec.msgpack.Encoder().encode


def read_sequence(packed: bytes, names: SequenceHeaders) -> tuple[SequenceMark, bytes]:
    """The mark in the headers (msgpack of [[name, value], ...]), and the headers for the handler."""
    headers = unpack_headers(packed)
    by_name = headers_by_name(headers)
    starts = _is_true(by_name.get(names.start.lower().encode()))
    ends = _is_true(by_name.get(names.end.lower().encode()))
    named = sequence_id_of(by_name, names)
    if named:
        return SequenceMark(named, starts, ends), packed
    # Not the cheaper ids of requests, which can be guessed from one another.
    sequence_id = f"ts-seq-{uuid.uuid4()}"
    own = {names.id.encode(): sequence_id.encode(), names.start.encode(): b"true"}
    unnamed = {name.lower() for name in own}
    seen = [(name, value) for name, value in headers if name.lower() not in unnamed]
    return SequenceMark(sequence_id, True, ends), pack_headers([*seen, *own.items()])


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers by their names in lower case."""
    return {name.lower(): value.strip() for name, value in headers}


def sequence_id_of(by_name: Mapping[bytes, bytes], names: SequenceHeaders) -> str:
    """The id of the sequence that the client names; empty if it names none."""
    return by_name.get(names.id.lower().encode(), b"").decode("latin-1")


def sequence_headers(
    request: Request, names: SequenceHeaders, own: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The sequence headers of an answer, without those among the handler's ``own``."""
    if not isinstance(request, SequencedRequest):
        return []
    headers = {names.id: request.mark.id}
    if request.is_first:
        headers[names.start] = "true"
    own_names = {name.lower() for name, _ in own}
    return [(name, value) for name, value in headers.items() if name.lower() not in own_names]


def _is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"
