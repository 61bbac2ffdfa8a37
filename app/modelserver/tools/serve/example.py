"""A request to try: a command with curl that works as it stands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES
from modelserver.engine.tensors.tensor import VARIABLE, TensorSpec
from modelserver.models.settings.settings import Settings
from modelserver.models.version import ModelVersion
from modelserver.surface.auth.policy import wants_tokens
from modelserver.surface.auth.scopes import KEY_FILE, Scope

_JSON: Final = "application/json"
_PICTURES: Final = ("image_classifier", "image_segmenter", "object_detector", "densenet_handler")
_TEXTS: Final = ("text_classifier",)
# A picture of one pixel, in the PNG format.
_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mM4ESAHAAMaATfqOFkUAAAAAElFTkSuQmCC"
_BY_FORMAT: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "email": "name@example.com",
    "uri": "https://example.com",
}
# Endpoints of OpenAI's API, and what a body has beside the model.
_OF_OPENAI: Final[Mapping[str, dict[str, Any]]] = {
    "v1/chat/completions": {"messages": [{"role": "user", "content": "What is a tensor?"}]},
    "v1/completions": {"prompt": "A tensor is"},
    "v1/embeddings": {"input": ["a tensor", "a matrix"]},
    "v1/rerank": {"query": "tensor", "documents": ["a tensor", "a matrix"]},
}
_DEEPEST: Final = 8
# The most numbers that are written out in the command.
_SHORT: Final = 64


def url_of(model: ModelVersion, settings: Settings) -> str:
    """Where predictions of the model are."""
    path = model.options.values["route"] or f"/predictions/{quote(model.name, safe='')}"
    return f"{settings.inference_address}{path}"


def command(model: ModelVersion, url: str, token: str, body: tuple[Path, str] | None = None) -> str:
    """The command for a model, or for a file as its body, with the content type.

    ``token`` is how a shell writes the token, empty if none is needed.
    """
    authorization = f' -H "Authorization: Bearer {token}"' if token else ""
    if body is not None:
        path, kind = body
        return f"curl{authorization}{_typed(kind)} --data-binary @{shlex.quote(str(path))} {url}"
    if endpoint := next((each for each in _OF_OPENAI if each in model.endpoints), ""):
        url = f"{'/'.join(url.split('/')[:3])}/{endpoint}"
        text = json.dumps({"model": model.name, **_OF_OPENAI[endpoint]})
        return f"curl{authorization}{_typed(_JSON)} -d {shlex.quote(text)} {url}"
    if model.pool.dispatch.takes_scopes:
        return f"curl{authorization} {url}/"
    handler = (model.registration.handler or model.archive.manifest.handler or "").rpartition(".")[2]
    if model.annotations is None and handler in _PICTURES:
        return f"echo {_PIXEL} | base64 -d | curl{authorization}{_typed('image/png')} --data-binary @- {url}"
    if not (model.annotations and model.annotations.inputs.media) and (inputs := model.signature.inputs):
        before, body_of_row = _of_tensors(inputs)
        return f"{before}curl{authorization}{_typed(_JSON)} {body_of_row} {url}"
    kind, text = _body(model, handler)
    return f"curl{authorization}{_typed(kind)} -d {shlex.quote(text)} {url}"


def shell_token(settings: Settings, environ: Mapping[str, str], cwd: Path) -> str:
    """How a shell writes the token for predictions, empty if none is needed."""
    if not wants_tokens(settings, environ):
        return ""
    variable = Scope.INFERENCE.variable
    if environ.get(variable):
        return f"${variable}"
    if settings.token_file is not None:
        return "TOKEN"
    read = f"import json; print(json.load(open({str(cwd / KEY_FILE)!r}))[{Scope.INFERENCE.value!r}]['key'])"
    return f"$(python3 -c {shlex.quote(read)})"


def _typed(kind: str) -> str:
    return f" -H {shlex.quote(f'Content-Type: {kind}')}"


def _body(model: ModelVersion, handler: str) -> tuple[str, str]:
    """The content type and the text of a body."""
    annotations = model.annotations
    if annotations is not None and annotations.inputs.media:
        side = annotations.inputs
        if side.media == _JSON:
            return _JSON, json.dumps(example_of(side.schema, side.schemas), ensure_ascii=False)
        return side.media, "some text"
    if handler in _TEXTS:
        return "text/plain", "some text"
    return _JSON, "[1.0, 2.0]" if handler == "base_handler" else "1"


def _of_tensors(inputs: Sequence[TensorSpec]) -> tuple[str, str]:
    """What comes before curl, and its option, for a body with one row of zeros for these inputs."""
    if sum(math.prod(_row(each)) for each in inputs) <= _SHORT:
        rows = {each.name: _nested(_zero(each), _row(each)) for each in inputs}
        return "", f"-d {shlex.quote(json.dumps(rows if len(rows) > 1 else rows[inputs[0].name]))}"
    texts = {each.name: _expression(each) for each in inputs}
    named = ", ".join(f"{name!r}: {text}" for name, text in texts.items())
    whole = f"{{{named}}}" if len(texts) > 1 else texts[inputs[0].name]
    made = shlex.quote(f"import json; print(json.dumps({whole}))")
    return f"python3 -c {made} | ", "--data-binary @-"


def _nested(value: Any, shape: Sequence[int]) -> Any:
    return [_nested(value, shape[1:]) for _ in range(shape[0])] if shape else value


def _expression(spec: TensorSpec) -> str:
    """A Python expression for zeros of the tensor's shape."""
    text = repr(_zero(spec))
    for size in reversed(_row(spec)):
        text = f"[{text}]*{size}"
    return text


def _zero(spec: TensorSpec) -> bool | int | float | str:
    if spec.datatype == BYTES:
        return "text"
    return {bool: False, int: 0, float: 0.0}[DATATYPES[spec.datatype].json_type]


def _row(spec: TensorSpec) -> list[int]:
    return [1 if size == VARIABLE else size for size in spec.shape[1:]]


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that fits a JSON schema; ``schemas`` are those that it refers to, by name."""
    if depth > _DEEPEST:
        return None
    if (reference := schema.get("$ref")) is not None:
        return example_of(schemas.get(reference.rpartition("/")[2], {}), schemas, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], schemas, depth + 1)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    kind = schema.get("type")
    if kind == "array":
        return _items(schema, schemas, depth)
    if kind == "object":
        required, properties = schema.get("required", ()), schema.get("properties", {})
        return {
            name: example_of(each, schemas, depth + 1)
            for name, each in properties.items()
            if name in required
        }
    return _simple(kind, schema)


def _simple(kind: str | None, schema: Mapping[str, Any]) -> Any:
    if kind in ("integer", "number"):
        return int(_within(schema)) if kind == "integer" else _within(schema)
    if kind == "string":
        return _text(schema)
    return {"boolean": True, "null": None}.get(kind or "", [1.0, 2.0])


def _items(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> list[Any]:
    if (places := schema.get("prefixItems")) is not None:
        return [example_of(each, schemas, depth + 1) for each in places]
    items = schema.get("items") or {"type": "integer"}
    return [example_of(items, schemas, depth + 1)] * max(1, schema.get("minItems", 1))


def _within(schema: Mapping[str, Any]) -> float:
    """A number above the least and below the largest allowed one."""
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    largest = schema.get("maximum", schema.get("exclusiveMaximum"))
    return float(least + 1 if largest is None else (least + largest) / 2)


def _text(schema: Mapping[str, Any]) -> str:
    if schema.get("contentEncoding") == "base64":
        return "dGV4dA=="
    shortest: int = schema.get("minLength", 0)
    return _BY_FORMAT.get(schema.get("format", ""), "text" * (1 + shortest // 4))
