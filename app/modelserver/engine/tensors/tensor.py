"""A tensor of the protocol, and its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from modelserver.engine.tensors.datatypes import (
    BYTES,
    DATATYPES,
    NAMES,
    TensorError,
    check_size,
    ends_of_elements,
    from_json,
    pack,
    unpack,
)
from modelserver.engine.tensors.weight import LIGHT_ELEMENTS, TooHeavy
from modelserver.errors import BadRequest

# More elements than fit in any body.
_MOST_ELEMENTS = 1 << 40
_MOST_EMPTY = 1 << 20
# numpy 1 supports 32, one of which is for the rows if a request stays whole.
_MOST_DIMENSIONS = 31


VARIABLE = -1
# Triton's parameter by which a client requests the classes of an output instead of its tensor.
CLASSIFICATION = "classification"
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output in a model's signature; ``shape`` has the rows first, VARIABLE is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(
            expected in (VARIABLE, size) for expected, size in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Tensor:
    """``data`` is in binary form: little-endian, row-major, BYTES after their lengths.

    ``text``: BYTES elements received as JSON strings.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview
    parameters: dict[str, Any] = field(default_factory=dict)
    text: bool = False

    @property
    def trailing(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[1:]

    @staticmethod
    def check_form(name: str, datatype: str, shape: Sequence[int], where: str = "input") -> None:
        """Raises BadRequest, naming the tensor, for an invalid datatype or shape."""
        where = f"{where} '{name}'"
        if datatype not in DATATYPES and datatype != BYTES:
            raise BadRequest(f"{where}: unknown datatype '{datatype}', supported are {', '.join(NAMES)}")
        if len(shape) > _MOST_DIMENSIONS:
            raise BadRequest(f"{where}: shape has {len(shape)} sizes, {_MOST_DIMENSIONS} are allowed")
        if any(size < 0 for size in shape):
            raise BadRequest(f"{where}: shape {list(shape)} has a negative size")
        count = elements(shape)
        if count > _MOST_ELEMENTS:
            raise BadRequest(f"{where}: shape {list(shape)} has more elements than fit in a body")
        # With a size of zero, the body does not limit the other sizes.
        if count == 0 and elements([size or 1 for size in shape]) > _MOST_EMPTY:
            raise BadRequest(f"{where}: shape {list(shape)} is too large for a tensor without elements")

    @classmethod
    def of_values(cls, name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
        """Packs Python numbers, booleans, or for BYTES byte strings. Raises BadRequest, naming the input."""
        try:
            return cls(name, datatype, tuple(shape), memoryview(pack(datatype, values)))
        except TensorError as error:
            raise BadRequest(f"input '{name}': {error}") from error

    def checked(self, *, light: bool = False) -> Tensor:
        """Itself, if it has as many elements as its shape says.

        Raises:
            BadRequest: it has not; names the input.
            TooHeavy: only if ``light``: to split it would take long.
        """
        count = elements(self.shape)
        if light and self.datatype == BYTES and not self.text and count > LIGHT_ELEMENTS:
            raise TooHeavy
        check_data(self.name, self.datatype, count, self.data)
        return self

    def rows(self) -> list[memoryview]:
        """The bytes of each element of the first dimension, in order."""
        count, data = self.shape[0], self.data
        if self.datatype == BYTES:
            return _rows_of_elements(data, count, elements(self.trailing))
        width = len(data) // count if count else 0
        return [data[number * width : (number + 1) * width] for number in range(count)]


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of a response; its bytes are the ``pieces`` in order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    pieces: Sequence[bytes | memoryview]

    @classmethod
    def of_json(cls, name: str, datatype: str, shape: Sequence[int], data: msgspec.Raw) -> OutputTensor:
        """An output as REST has it. Elements of BYTES that are not text become JSON, as in envelopes.

        Raises BadRequest, TensorError, or DecodeError.
        """
        Tensor.check_form(name, datatype, shape, "output")
        try:
            values = from_json(datatype, data)
        except TensorError:
            if datatype != BYTES:
                raise
            values = _decode_elements(data)
        if datatype == BYTES:
            values = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        return cls(name, datatype, tuple(shape), [pack(datatype, values)]).checked()

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def data(self) -> memoryview:
        """The bytes in one piece, copied if there are several."""
        pieces = self.pieces
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def values(self) -> list[Any]:
        """The elements; BYTES as byte strings. Raises TensorError."""
        return unpack(self.datatype, self.data)

    def checked(self) -> OutputTensor:
        """Itself. Raises BadRequest, naming the output, unless it has as many elements as its shape says."""
        check_data(self.name, self.datatype, elements(self.shape), self.data, "output")
        return self


def _rows_of_elements(data: memoryview, count: int, each: int) -> list[memoryview]:
    ends = [0, *ends_of_elements(data)]
    return [data[ends[number * each] : ends[(number + 1) * each]] for number in range(count)]


def elements(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


def check_data(name: str, datatype: str, count: int, data: memoryview, where: str = "input") -> None:
    """Raises BadRequest, naming the tensor, unless ``data`` has ``count`` elements."""
    try:
        check_size(datatype, count, data)
    except TensorError as error:
        raise BadRequest(f"{where} '{name}': {error}") from error
