"""Messages that stay bytes, as parsing or serializing them would block the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from modelserver.engine.tensors.weight import LIGHT_BYTES
from modelserver.errors import BadRequest
from modelserver.ext.grpc.messages import AnyMessage

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor


# Fields of a message that are cheap to parse, however large they are: buffers, which are not decoded. By
# number, each with such fields inside it.
_Buffers: TypeAlias = "dict[int, _Buffers]"
_BUFFERS: dict[str, _Buffers] = {
    # raw_input_contents; of the inputs' contents fp32_contents and fp64_contents.
    "inference.ModelInferRequest": {7: {}, 5: {5: {6: {}, 7: {}}}},
    # The values of input.
    "org.pytorch.serve.grpc.inference.PredictionsRequest": {3: {2: {}}},
}
_MOST_FIELDS = 1024
_LENGTH_DELIMITED = 2
_WIDTHS = {1: 8, 5: 4}


class EncodedMessage:
    """A message as its bytes. ``texts`` are its text fields, as attributes."""

    def __init__(self, descriptor: Descriptor, content: bytes, texts: dict[str, str] | None = None) -> None:
        self.DESCRIPTOR = descriptor
        self._content = content
        self.__dict__.update(texts or {})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        return self._content

    def within(self, descriptor: Descriptor, field: str) -> EncodedMessage:
        """A message that has this one as its only field."""
        tag = descriptor.fields_by_name[field].number << 3 | _LENGTH_DELIMITED
        return EncodedMessage(descriptor, bytes([tag]) + _varint(len(self._content)) + self._content)


class ReceivedMessage:
    """A message and the bytes it was parsed from: serializing a large one would copy it several times."""

    __slots__ = ("_content", "_message")

    def __init__(self, message: AnyMessage, content: bytes) -> None:
        self._message = message
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        return self._content


def is_heavy(name: str, body: bytes) -> bool:
    """Whether parsing a message of this type would take long."""
    return len(body) > LIGHT_BYTES and _weight(memoryview(body), _BUFFERS.get(name, {}))[0] > LIGHT_BYTES


def texts_of(descriptor: Descriptor, body: bytes) -> dict[str, str]:
    """The text fields of a message, "" for missing ones. Raises BadRequest."""
    texts = {each.number: each.name for each in descriptor.fields if each.type == each.TYPE_STRING}
    values = dict.fromkeys(texts.values(), "")
    try:
        for number, content in islice(_fields(memoryview(body)), 8 * _MOST_FIELDS):
            if number in texts:
                values[texts[number]] = str(content, "utf-8")
    except (UnicodeDecodeError, IndexError) as error:
        raise BadRequest(
            f"The message is not of type {descriptor.full_name}: Error parsing message"
        ) from error
    return values


def _weight(body: memoryview, buffers: _Buffers, left: int = _MOST_FIELDS) -> tuple[int, int]:
    """Bytes outside buffers, and how many more fields may be read; too many fields count as heavy."""
    total = len(body)
    try:
        for number, content in _fields(body):
            left -= 1
            if left < 0:
                return LIGHT_BYTES + 1, left
            within = buffers.get(number)
            if within is None:
                continue
            total -= len(content)
            if within:
                inner, left = _weight(content, within, left)
                total += inner
    except IndexError:
        # The parser will report it.
        return LIGHT_BYTES + 1, left
    return total, left


def _fields(body: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of each field; fields without a length have empty content. Raises IndexError."""
    place, end = 0, len(body)
    while place < end:
        tag, place = _read_varint(body, place)
        kind, content = tag & 7, body[:0]
        if kind == _LENGTH_DELIMITED:
            size, place = _read_varint(body, place)
            content = body[place : place + size]
            place += size
        elif kind == 0:
            _, place = _read_varint(body, place)
        elif kind in _WIDTHS:
            place += _WIDTHS[kind]
        else:
            raise IndexError
        yield tag >> 3, content


def _read_varint(body: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
