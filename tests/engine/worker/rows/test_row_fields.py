"""Rows of gRPC: bytes under names."""

from __future__ import annotations

import msgspec

from modelserver.engine.wire.messages import FIELDS, Row
from modelserver.engine.worker.rows.rows import decode_row


def test_fields_are_bytes() -> None:
    """Nothing is decoded, whatever it looks like; a field has an empty content type (reference 20)."""
    body = msgspec.msgpack.encode({"data": b'{"a": 1}', "ü": b""})

    decoded = decode_row(Row("id", len(body), FIELDS), memoryview(body), decode=True)

    assert decoded.data == {"data": bytearray(b'{"a": 1}'), "ü": bytearray()}
    assert {type(value) for value in decoded.data.values()} == {bytearray}
    assert decoded.part_types == {"data": "", "ü": ""}
