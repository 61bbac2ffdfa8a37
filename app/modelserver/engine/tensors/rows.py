"""Splits tensors into rows for workers, and joins the rows of their answers.

A request is split along the first dimension of its inputs. A row consists of its bytes of each input in
order; :class:`Form` describes them for all rows of a request. Two rows may share a batch if their forms are
equal, byte by byte.

An answer describes itself:

    u32 size of the head | head (msgpack, a list of OutputForm) | u64 size of each output | their bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES, LENGTH, TensorError, pack, unpack
from modelserver.engine.tensors.tensor import OutputTensor, Tensor, elements

if TYPE_CHECKING:
    from modelserver.engine.tensors.rest import InferRequest

Buffer: TypeAlias = bytes | memoryview

_HEAD = struct.Struct("<I")
# The datatypes of Python's numbers, each of which can hold the previous ones.
_PYTHONS = {"INT64": 0, "UINT64": 1, "FP64": 2}
# The order of parameters does not matter.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class InputForm(msgspec.Struct, frozen=True, array_like=True):
    """An input of each row, with the shape of one row; ``text``: BYTES received as JSON strings."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    text: bool = False
    parameters: dict[str, Any] | None = None


class OutputWish(msgspec.Struct, frozen=True, array_like=True):
    """An output that the client requests."""

    name: str
    parameters: dict[str, Any] | None = None


class Form(msgspec.Struct, frozen=True, array_like=True):
    """What all rows of a request have in common.

    ``whole``: it was not split, and its one row has the inputs as received. ``outputs`` None: all of them.
    """

    inputs: tuple[InputForm, ...]
    whole: bool = False
    parameters: dict[str, Any] | None = None
    outputs: tuple[OutputWish, ...] | None = None


class OutputForm(msgspec.Struct, frozen=True, array_like=True):
    """An output of one row, with the shape of one row."""

    name: str
    datatype: str
    shape: tuple[int, ...]


decode_form = msgspec.msgpack.Decoder(Form).decode
_decode_outputs = msgspec.msgpack.Decoder(list[OutputForm]).decode


def count_rows(inputs: Sequence[Tensor]) -> int:
    """The number of rows that a request is split into, 0 if it stays whole."""
    counts = {tensor.shape[0] if tensor.shape else 0 for tensor in inputs}
    return counts.pop() if len(counts) == 1 else 0


def cut(request: InferRequest) -> tuple[bytes, bool, list[Buffer]]:
    """The form of a request in msgpack, whether it stays whole, and its rows (copied only for several
    inputs).

    It stays whole if there is no dimension to split along: a scalar input, different first dimensions, no
    rows.
    """
    inputs = request.inputs
    whole = count_rows(inputs) == 0
    form = Form(
        tuple(
            InputForm(
                tensor.name,
                tensor.datatype,
                tensor.shape if whole else tensor.trailing,
                tensor.text,
                tensor.parameters or None,
            )
            for tensor in inputs
        ),
        whole,
        request.parameters or None,
        None
        if request.outputs is None
        else tuple(OutputWish(each.name, each.parameters or None) for each in request.outputs),
    )
    if whole:
        rows: list[Buffer] = [_joined([tensor.data for tensor in inputs])]
    elif len(inputs) == 1:
        rows = list(inputs[0].rows())
    else:
        rows = [b"".join(pieces) for pieces in zip(*(tensor.rows() for tensor in inputs), strict=True)]
    return _encode(form), whole, rows


def is_plain(request: InferRequest) -> bool:
    """Whether each row is just one element of BYTES.

    Such a row is to a handler like the body of a prediction or a V1 instance, and may share their batches
    (design 5: all protocols feed the same queue).
    """
    (first, *others) = request.inputs
    if others or first.datatype != BYTES or not first.shape or not first.shape[0]:
        return False
    has_more = request.parameters or first.parameters or request.outputs is not None
    return not has_more and elements(first.trailing) == 1


def _joined(pieces: Sequence[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def separate(form: Form, row: memoryview) -> list[memoryview]:
    """The bytes of each input in one row. Raises TensorError if they do not match the form."""
    pieces, position = [], 0
    for each in form.inputs:
        size = _size(each, row[position:])
        pieces.append(row[position : position + size])
        position += size
    if position != len(row):
        raise TensorError(f"received a row of {len(row)} bytes, expected {position}")
    return pieces


def _size(each: InputForm, left: memoryview) -> int:
    count = elements(each.shape)
    if each.datatype != BYTES:
        return count * DATATYPES[each.datatype].width
    size = 0
    for _ in range(count):
        if size + LENGTH.size > len(left):
            raise TensorError("the length before an element is truncated")
        size += LENGTH.size + LENGTH.unpack_from(left, size)[0]
    return size


# Answers


def pack_answer(outputs: Sequence[tuple[OutputForm, bytes]]) -> bytes:
    """The answer to one row."""
    head = _encode([form for form, _ in outputs])
    contents = [content for _, content in outputs]
    sizes = struct.pack(f"<{len(contents)}Q", *map(len, contents))
    return b"".join((_HEAD.pack(len(head)), head, sizes, *contents))


def join_answers(answers: Sequence[bytes], *, whole: bool) -> list[OutputTensor]:
    """The outputs of a request from the answers to its rows.

    INT64, UINT64 and FP64 are converted to the last of them that occurs, as Python's numbers do not imply a
    datatype. Raises TensorError if rows differ in names, datatypes or shapes, or an answer is malformed.
    """
    heads: dict[bytes, list[OutputForm]] = {}
    parts: list[tuple[bytes, list[memoryview]]] = []
    try:
        for answer in answers:
            head, rest = _take_head(memoryview(answer))
            if head not in heads:
                heads[head] = _decode_outputs(head)
            parts.append((head, _contents(rest, len(heads[head]))))
    except (struct.error, msgspec.DecodeError) as error:
        raise TensorError(f"an answer is malformed: {error}") from error
    if len(heads) == 1:
        (forms,) = heads.values()
        columns: list[list[Buffer]] = [[] for _ in forms]
        for _, contents in parts:
            for column, content in zip(columns, contents, strict=True):
                column.append(content)
    else:
        forms = _agreed([heads[head] for head, _ in parts])
        columns = [
            [_converted(heads[head][place], form, contents[place]) for head, contents in parts]
            for place, form in enumerate(forms)
        ]
    return [
        OutputTensor(form.name, form.datatype, form.shape if whole else (len(parts), *form.shape), column)
        for form, column in zip(forms, columns, strict=True)
    ]


def _take_head(answer: memoryview) -> tuple[bytes, memoryview]:
    (size,) = _HEAD.unpack_from(answer)
    end = _HEAD.size + size
    return bytes(answer[_HEAD.size : end]), answer[end:]


def _contents(rest: memoryview, count: int) -> list[memoryview]:
    sizes = struct.unpack_from(f"<{count}Q", rest)
    position, contents = 8 * count, []
    for size in sizes:
        contents.append(rest[position : position + size])
        position += size
    return contents


def _agreed(rows: Sequence[list[OutputForm]]) -> list[OutputForm]:
    first = rows[0]
    agreed = list(first)
    for number, forms in enumerate(rows):
        if [form.name for form in forms] != [form.name for form in first]:
            raise TensorError(
                f"the rows have different outputs: row 0 has {_names(first)}, "
                f"row {number} has {_names(forms)}"
            )
        for place, form in enumerate(forms):
            before = agreed[place]
            if form == before:
                continue
            if form.shape != before.shape or not {form.datatype, before.datatype} <= _PYTHONS.keys():
                raise TensorError(
                    f"the rows of output '{form.name}' cannot be joined: row 0 is {_describe(first[place])}, "
                    f"row {number} is {_describe(form)}"
                )
            agreed[place] = max(before, form, key=lambda each: _PYTHONS[each.datatype])
    return agreed


def _converted(form: OutputForm, target: OutputForm, content: memoryview) -> Buffer:
    return content if form == target else pack(target.datatype, unpack(form.datatype, content))


def _names(forms: Sequence[OutputForm]) -> str:
    return ", ".join(f"'{form.name}'" for form in forms) or "none"


def _describe(form: OutputForm) -> str:
    return f"{form.datatype} of shape {list(form.shape)}"
