"""The datatypes of the Open Inference Protocol and their elements as bytes (kserve reference 5 and 9).

Tensors are kept in the protocol's binary form: little-endian, row-major, each BYTES element after its length.
They are converted to Python numbers only to read or write JSON; the server does not need numpy. Machines are
little-endian, too.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

BYTES = "BYTES"
LENGTH = struct.Struct("<I")

# Excess elements that are counted for the message.
_COUNTED_ON = 1000


class TensorError(ValueError):
    """A tensor's data does not match its description. The message is about the data; callers add the name."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A fixed-size type of ``width`` bytes per element; ``json_type`` is that of its elements in JSON."""

    name: str
    width: int
    json_type: type
    pack: Callable[[Sequence[Any]], bytes]
    unpack: Callable[[memoryview], list[Any]]


def _numbers(code: str) -> tuple[Callable[[Sequence[Any]], bytes], Callable[[memoryview], list[Any]]]:
    def pack(values: Sequence[Any]) -> bytes:
        return array(code, values).tobytes()

    def unpack(data: memoryview) -> list[Any]:
        numbers = array(code)
        numbers.frombytes(data)
        return numbers.tolist()

    return pack, unpack


def _unpack_bools(data: memoryview) -> list[bool]:
    return [element != 0 for element in data]


def _pack_halves(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def _unpack_halves(data: memoryview) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 2}e", data))


def _pack_brains(values: Sequence[float]) -> bytes:
    """The upper halves of float32, rounded to the nearest, ties to even."""
    wide = array("I", struct.pack(f"={len(values)}f", *values))
    return array("H", (_upper(bits) for bits in wide)).tobytes()


def _upper(bits: int) -> int:
    if bits & 0x7FFFFFFF > 0x7F800000:  # not a number: rounding could make it infinite
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _unpack_brains(data: memoryview) -> list[float]:
    narrow = array("H")
    narrow.frombytes(data)
    wide = array("I", (element << 16 for element in narrow))
    return list(struct.unpack(f"={len(wide)}f", wide.tobytes()))


DATATYPES: dict[str, Datatype] = {
    name: Datatype(name, width, kind, *functions)
    for name, width, kind, functions in (
        ("BOOL", 1, bool, (bytes, _unpack_bools)),
        ("UINT8", 1, int, _numbers("B")),
        ("UINT16", 2, int, _numbers("H")),
        ("UINT32", 4, int, _numbers("I")),
        ("UINT64", 8, int, _numbers("Q")),
        ("INT8", 1, int, _numbers("b")),
        ("INT16", 2, int, _numbers("h")),
        ("INT32", 4, int, _numbers("i")),
        ("INT64", 8, int, _numbers("q")),
        ("FP16", 2, float, (_pack_halves, _unpack_halves)),
        ("BF16", 2, float, (_pack_brains, _unpack_brains)),
        ("FP32", 4, float, _numbers("f")),
        ("FP64", 8, float, _numbers("d")),
    )
}
NAMES = (*DATATYPES, BYTES)


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Packs Python numbers, booleans, or for BYTES byte strings. Raises TensorError for one out of range."""
    if datatype == BYTES:
        return b"".join(piece for value in values for piece in (LENGTH.pack(len(value)), value))
    try:
        return DATATYPES[datatype].pack(values)
    except (OverflowError, struct.error) as error:
        raise TensorError(f"a value is out of the range of {datatype}") from error


def unpack(datatype: str, data: memoryview) -> list[Any]:
    """The elements of a tensor whose size was checked; BYTES as byte strings. Raises TensorError."""
    if datatype == BYTES:
        return [bytes(element) for element in split_elements(data)]
    return DATATYPES[datatype].unpack(data)


def ends_of_elements(data: memoryview, most: int = sys.maxsize) -> list[int]:
    """The end of each element of a BYTES tensor, of at most ``most``. Raises TensorError."""
    ends: list[int] = []
    position, end, read = 0, len(data), LENGTH.unpack_from
    while position < end and len(ends) < most:
        begin = position + LENGTH.size
        if begin > end:
            raise TensorError("the length before an element is truncated")
        (length,) = read(data, position)
        position = begin + length
        if position > end:
            raise TensorError(f"an element of {length} bytes is announced where {end - begin} are left")
        ends.append(position)
    return ends


def split_elements(data: memoryview) -> list[memoryview]:
    """The elements of a BYTES tensor, without the lengths before them. Raises TensorError."""
    ends = ends_of_elements(data)
    return [data[begin + LENGTH.size : end] for begin, end in zip(chain((0,), ends), ends, strict=False)]


def check_size(datatype: str, count: int, data: memoryview) -> None:
    """Raises TensorError unless ``data`` has exactly ``count`` elements."""
    if datatype == BYTES:
        most = count + _COUNTED_ON
        counted = len(ends_of_elements(data, most))
        if counted != count:
            more = " or more" if counted == most else ""
            raise TensorError(f"its shape has {count} elements, its data {counted}{more}")
        return
    needed = count * DATATYPES[datatype].width
    if len(data) != needed:
        raise TensorError(f"its shape needs {needed} bytes, its data has {len(data)}")


_flat_decoders: dict[type, Callable[[bytes | msgspec.Raw], list[Any]]] = {
    bool: msgspec.json.Decoder(list[bool]).decode,
    int: msgspec.json.Decoder(list[int]).decode,
    float: msgspec.json.Decoder(list[float]).decode,
    str: msgspec.json.Decoder(list[str]).decode,
}
_decode_any = msgspec.json.Decoder().decode


def from_json(datatype: str, raw: bytes | msgspec.Raw) -> list[Any]:
    """The elements of a JSON list, flat or nested, in row-major order; text for BYTES. Raises TensorError."""
    kind = str if datatype == BYTES else DATATYPES[datatype].json_type
    try:
        values: list[Any] = _flat_decoders[kind](raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _from_nested(datatype, kind, raw)
    return values


def _from_nested(datatype: str, kind: type, raw: bytes | msgspec.Raw) -> list[Any]:
    try:
        data = _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TensorError(f"its data is not valid JSON: {error}") from error
    if not isinstance(data, list):
        raise TensorError("its data is not a list")
    values: list[Any] = []
    _flatten(data, values)
    for value in values:
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits:
            raise TensorError(f"{datatype} data contains {_kind_name(value)}")
    return values


def _flatten(data: list[Any], into: list[Any]) -> None:
    """Flattens nested lists; the nesting need not match the shape, as the protocol allows flat data too."""
    pending = [iter(data)]
    while pending:
        for each in pending[-1]:
            if isinstance(each, list):
                pending.append(iter(each))
                break
            into.append(each)
        else:
            pending.pop()


def _kind_name(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", dict: "an object"}
    return names.get(type(value), "null")
