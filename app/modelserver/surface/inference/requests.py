"""From what a codec has read to a request for a model's queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from modelserver.engine.batching.queue import ImmediateKey
from modelserver.engine.batching.request import Request, SequencedRequest, SequenceMark
from modelserver.engine.wire.messages import Row, SequenceHeaders
from modelserver.models.version import ModelRouter, ModelVersion
from modelserver.surface.inference.codec import Parsed

# The headers for sequences, of clients and handlers (reference 8.9).
#
# ``ts_request_sequence_id`` is the id. A request without it begins a sequence: it gets an id and a start
# header, which the handler sees like the client's. Unlike in TorchServe:
#
# * every answer has the id in the same header, so that a client that sent none can continue, and the first
#   answer has ``ts_request_sequence_start: true``, so that a client notices that its earlier one had ended;
# * a client may send ``ts_request_sequence_end: true``: the sequence ends after that request, and not only
#   after being idle for long enough.

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


def make_request(  # noqa: PLR0917 - called for each request
    parsed: Parsed,
    model: ModelVersion,
    request_id: str,
    packed: bytes,
    now: float,
    left: float | None,
    explain: bool,
) -> Request:
    """The request for the model's queue. ``packed`` are the headers, ``left`` is the call's timeout.

    The smallest timeout, of the model, the call and the request, takes effect.
    """
    names = model.sequence_headers
    if names is not None:
        mark, packed = read_sequence(headers_of(parsed, packed), names)
    headers, bodies = Raw(packed), parsed.bodies
    rows: list[Row] = []
    for body in bodies:
        rows.append(  # noqa: PERF401 - most have one, for which a comprehension costs more than the row
            Row(
                request_id,
                len(body),
                parsed.kind,
                parsed.content_type,
                headers,
                parsed.query,
                parsed.url_path,
                explain,
                parsed.extra,
            )
        )
    key = ImmediateKey(parsed.key) if explain else parsed.key
    seconds = model.options.request_timeout
    if left is not None or parsed.timeout is not None:
        seconds = min(bound for bound in (seconds, left, parsed.timeout) if bound is not None)
    deadline = None if seconds is None else now + seconds
    if names is None:
        return Request(request_id, rows, bodies, now, key, deadline)
    return SequencedRequest(request_id, rows, bodies, now, mark=mark, key=key, deadline=deadline)


def home_of_sequence(
    model: ModelVersion, traffic: ModelRouter, parsed: Parsed, packed: bytes
) -> ModelVersion:
    """The version that has the request's sequence, else ``model``, which was chosen for the request."""
    names = model.sequence_headers
    if names is None:
        return model
    sequence_id = sequence_id_of(headers_by_name(unpack_headers(headers_of(parsed, packed))), names)
    return traffic.home(sequence_id, model) if sequence_id else model


def headers_of(parsed: Parsed, packed: bytes) -> bytes:
    """The client's headers (msgpack of [[name, value], ...]) with those of its sequence."""
    return pack_headers([*unpack_headers(packed), *parsed.sequence]) if parsed.sequence else packed
