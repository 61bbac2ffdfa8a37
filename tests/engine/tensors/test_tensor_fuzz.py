"""Anything that may be sent as a request: read, or refused in words."""

from __future__ import annotations

import contextlib
import json

from hypothesis import event, given, settings
from tests.engine.tensors.odd_requests import odd_bodies

from modelserver.engine.tensors.rest import InferRequest, decode_request, encode_request
from modelserver.engine.tensors.rows import count_rows, cut, decode_form, is_plain, separate
from modelserver.errors import BadRequest


def read(body: bytes, header: str | None) -> InferRequest | None:
    """The request, or None if it is refused."""
    with contextlib.suppress(BadRequest):
        return decode_request(body, header)
    return None


@given(odd_bodies())
@settings(max_examples=100)
def test_bodies_are_read_or_refused(odd: tuple[bytes, str | None]) -> None:
    """Nothing but BadRequest is raised (F9, F70); what is read has data for its shapes, and can be cut."""
    request = read(*odd)
    event("refused" if request is None else "read")
    if request is None:
        return
    extra, whole, rows = cut(request)
    form = decode_form(extra)
    pieces = [separate(form, memoryview(row)) for row in rows]

    assert len(rows) == (1 if whole else count_rows(request.inputs))
    assert sum(map(len, rows)) == sum(len(tensor.data) for tensor in request.inputs)
    assert all(len(each) == len(request.inputs) for each in pieces)
    assert not (is_plain(request) and whole)


@given(odd_bodies())
@settings(max_examples=60)
def test_bodies_become_json_or_are_refused(odd: tuple[bytes, str | None]) -> None:
    """Those who read no binary data get the same request in JSON, or nothing (F9)."""
    body, header = odd
    request = read(body, header)
    if header is None or request is None:
        return
    inputs = json.loads(encode_request(body, header))["inputs"]

    assert [(each["name"], each["datatype"], tuple(each["shape"])) for each in inputs] == [
        (each.name, each.datatype, each.shape) for each in request.inputs
    ]
    assert all("binary_data_size" not in each.get("parameters", {}) for each in inputs)
