"""What a handler's annotations say about its rows and answers: V2 tensors, and schemas for OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from modelserver_handlers.arrays import datatype_of
from modelserver_handlers.typed.reading import dtype_of, is_array, is_pydantic, is_tensor

Schema: TypeAlias = dict[str, Any]

JSON: Final = "application/json"
TEXT: Final = "text/plain"
BINARY: Final = "application/octet-stream"

_REFERENCE: Final = "#/components/schemas/handler.{name}"
_ANY: Final = -1
_NUMBERS: Final = {bool: "BOOL", int: "INT64", float: "FP64"}
_LISTS: Final = (list, Sequence, Iterable)
_ARRAY: Final[Schema] = {"description": "A number, or numbers in nested lists."}


@dataclass(frozen=True, slots=True)
class ContentType:
    """The content type of answers, as in ``Annotated[bytes, ContentType("image/png")]``."""

    name: str


@dataclass(frozen=True, slots=True)
class Described:
    """One side of a signature.

    ``tensors`` are name, datatype and shape (-1 is any size) in the Open Inference Protocol, and ``media`` is
    the content type of a body; ``schema`` is None if nothing is known. ``schemas`` are those that it refers
    to, by name.
    """

    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    media: str = ""
    schema: Schema | None = None
    schemas: dict[str, Schema] = field(default_factory=dict)


def described(annotation: Any, name: str) -> Described:
    """The description of rows of this type; ``name`` is the tensor's. Empty without an annotation."""
    if annotation in (None, Any, object, type(None)):
        return Described()
    datatype, rank = _tensor_of(annotation)
    tensors = ((name, datatype, (_ANY,) * (rank + 1)),)
    if annotation is str:
        return Described(tensors, TEXT, {"type": "string"})
    if annotation in (bytes, bytearray):
        return Described(tensors, BINARY, {"type": "string", "format": "binary"})
    if is_array(annotation) or is_tensor(annotation):
        return Described(tensors, JSON, _ARRAY)
    return Described(tensors, JSON, *_schema_of(annotation))


def declared_type(method: Any) -> str:
    """The content type in the annotation of a method's answers, or of one; empty without one."""
    try:
        hint = get_type_hints(method, include_extras=True).get("return")
    except NameError:
        # The result's annotation is for type checkers only.
        return ""
    if get_origin(hint) is list:
        hint = next(iter(get_args(hint)), None)
    notes = getattr(hint, "__metadata__", ())
    return next((note.name for note in notes if isinstance(note, ContentType)), "")


def element_of(annotation: Any) -> tuple[Any, bool]:
    """The type of a row in the annotation of a batch, and whether the batch is to be one array or tensor.

    Raises TypeError for what is no list of rows.
    """
    if annotation in (None, Any, object):
        return None, False
    if is_array(annotation) or is_tensor(annotation):
        return annotation, True
    if (get_origin(annotation) or annotation) in _LISTS:
        return next(iter(get_args(annotation)), None), False
    name = getattr(annotation, "__name__", annotation)
    raise TypeError(f"is annotated with {name}, but gets all rows of a batch: list[{name}] is needed")


def _tensor_of(annotation: Any) -> tuple[str, int]:
    """Datatype and number of dimensions of one row."""
    if is_tensor(annotation) or is_array(annotation):
        return _datatype_of(annotation), 1
    rank = 0
    while get_origin(annotation) is list:
        annotation, rank = get_args(annotation)[0], rank + 1
    return (_NUMBERS[annotation], rank) if annotation in _NUMBERS else ("BYTES", 0)


def _datatype_of(annotation: Any) -> str:
    """The protocol's name of an array's datatype; 32 bits if it names none."""
    dtype = dtype_of(annotation)
    return datatype_named("float32" if dtype is None else str(dtype.name))


def datatype_named(name: str) -> str:
    """The protocol's name of a datatype of numpy or torch."""
    return datatype_of(name) or name.upper()


def _schema_of(annotation: Any) -> tuple[Schema | None, dict[str, Schema]]:
    if is_pydantic(annotation):
        schema = annotation.model_json_schema(ref_template=_REFERENCE.format(name="{model}"))
        schemas = schema.pop("$defs", {})
    else:
        try:
            (schema,), schemas = msgspec.json.schema_components([annotation], ref_template=_REFERENCE)
        except TypeError:
            return None, {}
    return schema, {f"handler.{name}": each for name, each in schemas.items()}
