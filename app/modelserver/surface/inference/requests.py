"""From what a codec has read to a request for a model's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from modelserver.engine.batching.queue import ImmediateKey
from modelserver.engine.batching.request import Request, SequencedRequest
from modelserver.engine.wire.messages import Row
from modelserver.surface.inference.sequences import (
    headers_by_name,
    pack_headers,
    read_sequence,
    sequence_id_of,
    unpack_headers,
)

if TYPE_CHECKING:
    from modelserver.models.version import ModelRouter, ModelVersion
    from modelserver.surface.inference.codec import Parsed

# An empty list of headers in msgpack.
NO_HEADERS = b"\x90"


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
    key: object = (explain, parsed.key)
    if explain:
        key = ImmediateKey(key)
    seconds = model.options.request_timeout
    if left is not None or parsed.timeout is not None:
        seconds = min(bound for bound in (seconds, left, parsed.timeout) if bound is not None)
    deadline = None if seconds is None else now + seconds
    if names is None:
        return Request(request_id, rows, bodies, now, key=key, deadline=deadline)
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
