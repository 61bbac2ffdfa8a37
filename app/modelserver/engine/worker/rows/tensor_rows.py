"""Rows of V2 tensors: decodes their bytes for the handler, and encodes its results as outputs.

A handler gets (design 9, "Rows"):

* for one BYTES input with one element per row, the same as for a body of ``/predictions``:
  ``{"body": bytes}``, or ``{"data": text}`` if it was JSON;
* for numbers, a tensor per row: of torch if the handler has imported torch, otherwise a read-only numpy array
  (BF16 is float32 unless ml_dtypes is imported). One input is ``{"data": row}``, several are
  ``{name: row, ...}``;
* for other BYTES, nested lists of bytes or text.

A batch of numbers is a :class:`TensorRows`, whose tensors are also available in one piece, without a copy.

It may return for a row: as one output a tensor, an array, a number, a boolean, text, bytes, a rectangular
list of numbers or of bytes, or an input unchanged. Several outputs are a tuple or dict of tensors, or a dict
whose keys are outputs of the model's signature or the inputs. Anything else is one BYTES element with its
JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES, TensorError, pack, split_elements, unpack
from modelserver.engine.tensors.rows import Form, InputForm, OutputForm, decode_form, pack_answer, separate
from modelserver.engine.worker.rows.classes import classified
from modelserver_handlers.answers import Unserializable, encode_instance
from modelserver_handlers.arrays import encode, is_array, row_of, stack
from modelserver_handlers.tensor_rows import TensorRows

if TYPE_CHECKING:
    from modelserver.engine.wire.messages import OutputSpec, Row

_ONLY = "data"


class UnknownOutput(Exception):
    """The client requested an output that the answer does not have."""


class EmptyInput(Exception):
    """The request has no rows, but the handler returned some."""


form_of = lru_cache(64)(decode_form)
"""The form in a row's ``extra``."""


# What handlers get


def decode_rows(rows: Sequence[Row], tail: memoryview) -> list[Any]:
    """The handler's data for rows of one form, whose bytes are ``tail``. Raises TensorError."""
    form = form_of(rows[0].extra)
    if all(each.datatype != BYTES for each in form.inputs):
        return _numbers(form, len(rows), tail)
    decoded, position = [], 0
    for row in rows:
        end = position + row.size
        decoded.append(_mixed(form, tail[position:end]))
        position = end
    return decoded


def _numbers(form: Form, count: int, tail: memoryview) -> list[Any]:
    """All rows at once."""
    sizes = [math.prod(each.shape) * DATATYPES[each.datatype].width for each in form.inputs]
    if sum(sizes) * count != len(tail):
        raise TensorError(f"received {len(tail)} bytes of rows, expected {sum(sizes) * count}")
    tensors = stack(form, sizes, count, tail)
    columns = list(tensors.values())
    return TensorRows(
        [_named(form, [row_of(column, row) for column in columns]) for row in range(count)], tensors
    )


def _named(form: Form, values: Sequence[Any]) -> dict[str, Any]:
    if len(values) == 1:
        return {_ONLY: values[0]}
    return {each.name: value for each, value in zip(form.inputs, values, strict=True)}


def _mixed(form: Form, row: memoryview) -> dict[str, Any]:
    """One row with BYTES among its inputs."""
    pieces = separate(form, row)
    if len(pieces) == 1 and math.prod(form.inputs[0].shape) == 1:
        (element,) = split_elements(pieces[0])
        return {_ONLY: str(element, "utf-8")} if form.inputs[0].text else {"body": bytearray(element)}
    return _named(form, [_value(each, piece) for each, piece in zip(form.inputs, pieces, strict=True)])


def _value(each: InputForm, piece: memoryview) -> Any:
    if each.datatype != BYTES:
        return row_of(stack(Form((each,)), [len(piece)], 1, piece)[each.name], 0)
    values = unpack(BYTES, piece)
    return _nest([value.decode() for value in values] if each.text else values, each.shape)


class _Elements(list[Any]):
    """A list of received BYTES elements."""


def _nest(values: list[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return _Elements(values) if shape else values[0]
    width = math.prod(shape[1:])
    return _Elements(_nest(values[row * width : (row + 1) * width], shape[1:]) for row in range(shape[0]))


def tensor_parameters(extra: bytes) -> dict[str, Any]:
    """The parameters of a request of this form, structured as in V1 bodies."""
    form = form_of(extra)
    description: dict[str, Any] = {}
    if form.parameters:
        description["parameters"] = dict(form.parameters)
    if own := {each.name: dict(each.parameters) for each in form.inputs if each.parameters}:
        description["inputs"] = own
    if form.outputs is not None:
        description["outputs"] = {each.name: dict(each.parameters or {}) for each in form.outputs}
    return description


# What they return


def encode_output(
    value: Any, row: Row, specs: Sequence[OutputSpec], labels: Callable[[], Mapping[str, str]] = dict
) -> bytes:
    """The answer to one row. ``specs`` are the outputs in the model's signature, ``labels`` those of classes.

    Raises UnknownOutput, EmptyInput, NotClassifiable, and Unserializable if a value cannot be encoded.
    """
    form = form_of(row.extra)
    known = {spec.name: spec for spec in specs}
    outputs = _outputs(value, specs, {each.name for each in form.inputs})
    names = list(outputs) if form.outputs is None else [each.name for each in form.outputs]
    for name in names:
        if name not in outputs:
            raise UnknownOutput(name)
    encoded = [_encode(name, outputs[name], known.get(name), form.whole) for name in names]
    is_empty = form.whole and all(each.shape[:1] == (0,) for each in form.inputs)
    if is_empty and any(math.prod(description.shape) for description, _ in encoded):
        raise EmptyInput
    if form.outputs is not None:
        encoded = [classified(each, wish, labels) for each, wish in zip(encoded, form.outputs, strict=True)]
    return pack_answer(encoded)


def _outputs(value: Any, specs: Sequence[OutputSpec], inputs: Set[str]) -> Mapping[str, Any]:
    if isinstance(value, Mapping) and value:
        names = {spec.name for spec in specs}
        # Several inputs may be returned as several outputs.
        is_row = len(inputs) > 1 and value.keys() == inputs
        if all(isinstance(name, str) for name in value) and (
            is_row or value.keys() <= names or all(map(is_array, value.values()))
        ):
            return value
    values = value if isinstance(value, tuple) and value and all(map(is_array, value)) else (value,)
    return {
        specs[place].name if place < len(specs) else f"output_{place}": each
        for place, each in enumerate(values)
    }


def _encode(name: str, value: Any, spec: OutputSpec | None, whole: bool) -> tuple[OutputForm, bytes]:
    try:
        datatype, shape, content = _tensor(value, spec)
    except TensorError as error:
        raise Unserializable(f"output '{name}': {error}") from error
    if spec is not None:
        declared = spec.shape if whole else spec.shape[1:]
        # One value a row may be declared as [-1, 1] as well as [-1].
        if min(declared, default=0) >= 0 and math.prod(declared) == math.prod(shape):
            shape = tuple(declared)
    if whole and not shape:
        shape = (1,)
    return OutputForm(name, datatype, shape), content


def _tensor(value: Any, spec: OutputSpec | None) -> tuple[str, tuple[int, ...], bytes]:
    """Datatype, shape and bytes."""
    if is_array(value):
        return encode(value)
    if isinstance(value, (str, bytes, bytearray)):
        content = value.encode() if isinstance(value, str) else bytes(value)
        return BYTES, (), pack(BYTES, [content])
    if (elements := _elements(value)) is not None:
        return BYTES, elements[0], pack(BYTES, elements[1])
    declared = None if spec is None else spec.datatype
    if declared != BYTES and (numbers := _rectangular(value, _KINDS)) is not None:
        shape, values = numbers
        datatype = _of_numbers(values, declared)
        if datatype is not None:
            return datatype, shape, pack(datatype, values)
    if declared == BYTES and isinstance(value, list) and len(spec.shape if spec else ()) > 1:
        blobs = [each.encode() if isinstance(each, str) else each for each in value]
        if all(isinstance(each, bytes) for each in blobs):
            return BYTES, (len(blobs),), pack(BYTES, blobs)
    return BYTES, (), pack(BYTES, [encode_instance(value)])


def _rectangular(value: Any, kinds: frozenset[type]) -> tuple[tuple[int, ...], list[Any]] | None:
    """Shape and values of one of ``kinds`` or of lists of them; None for anything else."""
    if type(value) in kinds:
        return (), [value]
    if not isinstance(value, (list, tuple)) or not (value or isinstance(value, _Elements)):
        return None
    # Most are flat.
    if set(map(type, value)) <= kinds:
        return (len(value),), list(value)
    inner: tuple[int, ...] | None = None
    values: list[Any] = []
    for each in value:
        row = _rectangular(each, kinds)
        if row is None or inner not in (None, row[0]):
            return None
        inner = row[0]
        values += row[1]
    return (len(value), *(inner or ())), values


def _elements(value: Any) -> tuple[tuple[int, ...], list[bytes]] | None:
    """Shape and elements of a list of bytes or received BYTES; None for anything else."""
    if not isinstance(value, list):
        return None
    elements = _rectangular(value, _TEXTS if isinstance(value, _Elements) else _BLOBS)
    if elements is None:
        return None
    return elements[0], [each.encode() if isinstance(each, str) else each for each in elements[1]]


_KINDS = frozenset({bool, int, float})
_BLOBS = frozenset({bytes})
_TEXTS = frozenset({bytes, str})
_WHOLE = 1 << 63


def _of_numbers(values: Sequence[Any], declared: str | None) -> str | None:
    """The datatype of Python numbers: the signature's if they fit, otherwise numpy's default."""
    kinds = set(map(type, values))
    if declared is not None:
        least = DATATYPES[declared].json_type
        if kinds <= ({bool} if least is bool else {int} if least is int else {int, float}):
            return declared
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        lowest, highest = min(values), max(values)
        if highest < _WHOLE:
            return "INT64" if lowest >= -_WHOLE else None
        return "UINT64" if lowest >= 0 and highest < 2 * _WHOLE else None
    return "FP64" if kinds <= {int, float} and float in kinds else None
