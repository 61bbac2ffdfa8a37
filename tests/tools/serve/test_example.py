from __future__ import annotations

import io
import json
import subprocess
from base64 import b64decode
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from PIL import Image

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.engine.wire.messages import Annotations, Side
from modelserver.models.options.signature import Signature
from modelserver.models.settings.settings import Settings
from modelserver.tools.serve.example import _PIXEL, command, example_of, shell_token, url_of

if TYPE_CHECKING:
    from pathlib import Path

_URL = "http://127.0.0.1:8080/predictions/m"


def model(handler: str = "h.py", inputs: Side | None = None, *specs: TensorSpec, name: str = "m") -> Any:
    return SimpleNamespace(
        name=name,
        endpoints={},
        registration=SimpleNamespace(handler=None),
        archive=SimpleNamespace(manifest=SimpleNamespace(handler=handler)),
        annotations=None if inputs is None else Annotations(inputs),
        signature=Signature(specs),
        pool=SimpleNamespace(dispatch=SimpleNamespace(takes_scopes=False)),
    )


def json_side(kind: Any) -> Side:
    (schema,), schemas = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return Side([], "application/json", schema, schemas)


class Point(msgspec.Struct):
    x: int
    name: str
    kind: Any = None


@pytest.mark.parametrize(
    ("served", "body"),
    [
        (model(), "-d 1 "),
        (model(inputs=Side()), "-d 1 "),
        (model(inputs=json_side(int)), "-H 'Content-Type: application/json' -d 1 "),
        (model(inputs=json_side(Point)), """-d '{"x": 1, "name": "text"}' """),
        (model(inputs=json_side(list[float])), "-d '[1.0]' "),
        (model(inputs=Side([], "text/plain", {})), "-H 'Content-Type: text/plain' -d 'some text' "),
        (model("text_classifier"), "-d 'some text' "),
        (model("base_handler"), "-d '[1.0, 2.0]' "),
        (model("base_handler", None, TensorSpec("a", "FP32", (-1, 2, -1))), "-d '[[0.0], [0.0]]' "),
        (
            model("base_handler", None, TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1, 1))),
            """-d '{"a": 0.0, "b": [0.0]}' """,
        ),
    ],
)
def test_body_fits_the_input(served: Any, body: str) -> None:
    """The body is one that the handler takes, as far as it is known."""
    text = command(served, _URL, "")

    assert text.startswith("curl -H ")
    assert body in text
    assert text.endswith(_URL)


def test_large_tensor_is_written_by_python() -> None:
    text = command(model("base_handler", None, TensorSpec("a", "FP32", (-1, 3, -1, 32))), _URL, "")
    made = subprocess.run(
        ["bash", "-c", text.partition(" | curl ")[0]], capture_output=True, text=True, check=True
    )
    values = json.loads(made.stdout)

    assert len(text) < 300
    assert text.endswith(f" --data-binary @- {_URL}")
    assert (len(values), len(values[0]), len(values[0][0])) == (3, 1, 32)


def test_models_of_openai_are_tried_at_their_endpoint() -> None:
    served = model()
    served.endpoints = {"v1/embeddings": True, "v1/other": False}

    assert command(served, _URL, "").endswith(
        """-d '{"model": "m", "input": ["a tensor", "a matrix"]}' http://127.0.0.1:8080/v1/embeddings"""
    )


def test_picture_is_piped_to_curl() -> None:
    text = command(model("image_classifier"), _URL, "")

    assert text.startswith(f"echo {_PIXEL} | base64 -d | curl ")
    assert Image.open(io.BytesIO(b64decode(_PIXEL))).convert("RGB").size == (1, 1)


def test_file_is_sent_with_its_type(tmp_path: Path) -> None:
    text = command(model(), _URL, "", (tmp_path / "my file.jpg", "image/jpeg"))

    assert text == f"curl -H 'Content-Type: image/jpeg' --data-binary @'{tmp_path}/my file.jpg' {_URL}"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 5}, 6),
        ({"type": "number", "minimum": 0, "maximum": 1}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 7}, 7),
        ({"default": "d"}, "d"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "string", "contentEncoding": "base64"}, "dGV4dA=="),
        ({"type": "string", "minLength": 6}, "texttext"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["text", "text"]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, [1, "text"]),
        ({"type": "array"}, [1]),
        ({}, [1.0, 2.0]),
    ],
)
def test_examples_fit_their_schema(schema: dict[str, Any], value: Any) -> None:
    assert example_of(schema, {}) == value


def test_recursive_schema_ends() -> None:
    schemas = {"T": {"type": "object", "required": ["t"], "properties": {"t": {"$ref": "#/x/T"}}}}

    assert "null" in json.dumps(example_of({"$ref": "#/x/T"}, schemas))


def test_names_in_urls() -> None:
    assert url_of(model(name="a b"), Settings()).endswith("/predictions/a%20b")


def test_token_is_read_by_the_shell(tmp_path: Path) -> None:
    always = Settings(token_authorization="always")
    (tmp_path / "key_file.json").write_text(json.dumps({"inference": {"key": "secret-key"}}))
    read = shell_token(always, {}, tmp_path)
    lines = subprocess.run(["bash", "-c", f"echo {read}"], capture_output=True, text=True, check=True)

    assert shell_token(Settings(), {}, tmp_path) == ""
    assert lines.stdout == "secret-key\n"
    assert "secret-key" not in read
    arguments = {"MODELSERVER_INFERENCE_TOKEN": "other-key"}
    assert shell_token(Settings(), arguments, tmp_path) == "$MODELSERVER_INFERENCE_TOKEN"
    assert '-H "Authorization: Bearer $X"' in command(model(), _URL, "$X")


def test_application_gets_a_request_to_its_root() -> None:
    served = model()
    served.pool.dispatch.takes_scopes = True

    assert command(served, _URL, "$TOKEN") == f'curl -H "Authorization: Bearer $TOKEN" {_URL}/'
