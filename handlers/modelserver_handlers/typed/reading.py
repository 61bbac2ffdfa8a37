"""From a row as the server sends it to the value that an annotation asks for.

Importing this imports neither torch, numpy nor pydantic: an annotation that needs one has imported it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from modelserver_handlers.errors import BadInput, first_line

Read: TypeAlias = Callable[[Any], Any]
"""From a row to its value. Raises BadInput, in words for the client."""

_NPY = b"\x93NUMPY"
_LONGEST = 60
_FORM = (
    "; the request is a form, which curl -d sends without a content type: "
    "use -H 'Content-Type: application/json'"
)


def reader_of(annotation: Any) -> Read:
    """The function that reads rows of this type; ``None`` (no annotation) and ``Any`` are plain values."""
    if annotation in (None, Any, object):
        return read_plain
    if annotation is str:
        return read_text
    if annotation in (bytes, bytearray):
        return lambda row: annotation(read_bytes(row))
    if is_array(annotation):
        dtype = dtype_of(annotation)
        return lambda row: read_array(row, dtype)
    if is_tensor(annotation):
        return read_tensor
    if is_pydantic(annotation):
        return lambda row: _read_pydantic(row, annotation)
    return _structured(annotation)


def is_array(annotation: Any) -> bool:
    """Whether it is ``numpy.ndarray``, or one with a datatype."""
    return _named(get_origin(annotation) or annotation, "numpy", "ndarray")


def is_tensor(annotation: Any) -> bool:
    """Whether it is ``torch.Tensor``."""
    return _named(annotation, "torch", "Tensor")


def is_pydantic(annotation: Any) -> bool:
    """Whether it is a model of pydantic."""
    return isinstance(annotation, type) and hasattr(annotation, "model_validate")


def dtype_of(annotation: Any) -> Any:
    """The datatype of ``numpy.typing.NDArray[…]``, None if it names none."""
    for argument in get_args(annotation):
        if _named(get_origin(argument), "numpy", "dtype"):
            numpy: Any = sys.modules["numpy"]
            scalar = get_args(argument)[0]
            named = isinstance(scalar, type) and issubclass(scalar, numpy.generic)
            return numpy.dtype(scalar) if named else None
    return None


def _named(kind: Any, module: str, name: str) -> bool:
    return getattr(kind, "__module__", None) == module and getattr(kind, "__name__", None) == name


def content_of(row: Any) -> Any:
    """What the client sent: the value of ``body`` or ``data`` if the row has nothing else, or the row."""
    if isinstance(row, Mapping) and len(row) == 1:
        (key,) = row
        if key in ("body", "data"):
            return row[key]
    return row


def read_plain(row: Any) -> Any:
    """Decoded JSON; bytes that are no JSON, and rows of tensors, as they are."""
    content = content_of(row)
    if isinstance(content, (bytes, bytearray)):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return bytes(content)
    return content


def read_text(row: Any) -> str:
    """A text; bytes must be UTF-8."""
    content = content_of(row)
    if isinstance(content, str):
        return content
    if isinstance(content, (bytes, bytearray)):
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise BadInput("a text in UTF-8 is needed, got other bytes") from None
    raise _refused("a text", content)


def read_bytes(row: Any) -> bytes:
    """Bytes as they were sent; of JSON, a text's bytes, or those of ``{"b64": …}``."""
    content = content_of(row)
    if isinstance(content, (bytes, bytearray)):
        return bytes(content)
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    if isinstance(content, Mapping) and set(content) == {"b64"}:
        try:
            return msgspec.convert(content["b64"], bytes)
        except msgspec.ValidationError:
            raise BadInput("b64 is not base64") from None
    raise _refused("bytes", content)


def read_array(row: Any, dtype: Any = None) -> Any:
    """An array of numpy from JSON numbers, a ``.npy`` file or a V2 row."""
    numpy: Any = sys.modules["numpy"]
    content = _numbers(row)
    if type(content).__module__ == "torch":
        content = content.numpy()
    try:
        array = numpy.asarray(content)
    except ValueError:
        raise BadInput("the lists of numbers have different lengths") from None
    if array.dtype.kind not in "biufc":
        raise _refused("numbers", content)
    return array if dtype is None else _cast(numpy, array, dtype)


def read_tensor(row: Any) -> Any:
    """A tensor of torch from the same."""
    torch: Any = sys.modules["torch"]
    content = _numbers(row)
    if isinstance(content, torch.Tensor):
        return content
    try:
        # A copy of arrays, since those of requests cannot be written to.
        return torch.tensor(content)
    except (ValueError, TypeError) as error:
        if isinstance(content, (list, int, float)):
            raise BadInput(f"numbers are needed: {first_line(error)}") from None
        raise _refused("numbers", content) from None


def _numbers(row: Any) -> Any:
    content = content_of(row)
    if not isinstance(content, (bytes, bytearray)):
        return content
    if content.startswith(_NPY):
        import numpy  # noqa: PLC0415 - only if a client sends such a file

        try:
            return numpy.load(io.BytesIO(content), allow_pickle=False)
        except ValueError as error:
            raise BadInput(f"the .npy file cannot be read: {first_line(error)}") from None
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        raise BadInput("numbers are needed, as JSON or as a .npy file") from None


def _cast(numpy: Any, array: Any, dtype: Any) -> Any:
    """The array in this datatype, unless values would be lost."""
    kinds = array.dtype.kind, dtype.kind
    whole = kinds[0] in "iu" and kinds[1] in "iu"
    if not (whole or numpy.can_cast(array.dtype, dtype, "same_kind")):
        raise BadInput(f"numbers of {dtype.name} are needed, got {array.dtype.name}")
    if whole and array.size:
        allowed = numpy.iinfo(dtype)
        if array.min() < allowed.min or array.max() > allowed.max:
            raise BadInput(f"numbers from {allowed.min} to {allowed.max} are needed")
    return array.astype(dtype, copy=False)


def _structured(annotation: Any) -> Read:
    """A reader by msgspec: of structs, data classes, typed dicts, numbers, lists, and dicts of them."""
    decoder, fields = msgspec.json.Decoder(annotation), _fields_of(annotation)

    def read(row: Any) -> Any:
        content = _whole(row) if fields is not None else content_of(row)
        try:
            if isinstance(content, (bytes, bytearray)):
                return decoder.decode(content)
            if _is_form(content):
                return msgspec.convert(_texts(content, fields or {}), annotation, strict=False)
            return msgspec.convert(_lists(content), annotation)
        except msgspec.ValidationError as error:
            raise BadInput(f"{error}{_form_hint(content)}") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadInput(f"JSON is needed: {error}") from None

    return read


def _read_pydantic(row: Any, model: Any) -> Any:
    content = _whole(row)
    try:
        if isinstance(content, (bytes, bytearray)):
            return model.model_validate_json(content)
        if _is_form(content):
            content = _texts(content, get_type_hints(model))
        return model.model_validate(_lists(content))
    except ValueError as error:
        raise BadInput(f"{_pydantic_message(error)}{_form_hint(content)}") from None


def _pydantic_message(error: ValueError) -> str:
    problems: Any = getattr(error, "errors", list)()
    lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ") for problem in problems]
    return "; ".join(lines) or first_line(error)


def _fields_of(annotation: Any) -> dict[str, Any] | None:
    """The types of the fields of a class that has some; None for others."""
    if isinstance(annotation, type) and annotation.__module__ != "builtins":
        return get_type_hints(annotation) or None
    return {} if (get_origin(annotation) or annotation) is dict else None


def _whole(row: Any) -> Any:
    """The content of a row, or the row if a field of the type is called ``body`` or ``data``."""
    content = content_of(row)
    is_value = isinstance(content, (Mapping, bytes, bytearray, str))
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    return content if is_value else row


def _is_form(content: Any) -> bool:
    return isinstance(content, Mapping) and any(isinstance(value, bytearray) for value in content.values())


def _texts(form: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a form as text, except where bytes are asked for."""
    return {
        name: bytes(value)
        if fields.get(name) in (bytes, bytearray)
        else value.decode("utf-8", "replace")
        if isinstance(value, bytearray)
        else value
        for name, value in form.items()
    }


def _lists(content: Any) -> Any:
    """Rows of tensors as lists."""
    if isinstance(content, Mapping):
        return {name: _lists(value) for name, value in content.items()}
    return content.tolist() if hasattr(content, "tolist") else content


def _form_hint(content: Any) -> str:
    return _FORM if _is_form(content) else ""


def _refused(needed: str, content: Any) -> BadInput:
    text = repr(content)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return BadInput(f"{needed} is needed, got {text}{_form_hint(content)}".replace("s is", "s are"))
