import io
import json
import subprocess
from base64 import b64decode
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from PIL import Image

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.engine.wire.messages import Annotations, Side
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.options.signature import Signature
from modelserver.models.settings.settings import Settings
from modelserver.tools.serve.example import _PIXEL, command, example_of, shell_token, url_of

_URL = "http://127.0.0.1:8080/predictions/m"


def model(handler="h.py", inputs=None, *specs, name="m"):
    return SimpleNamespace(
        name=name,
        endpoints={},
        registration=SimpleNamespace(handler=None),
        archive=SimpleNamespace(manifest=SimpleNamespace(handler=handler)),
        annotations=None if inputs is None else Annotations(inputs),
        signature=Signature(specs),
        options=ModelOptions(),
        pool=SimpleNamespace(dispatch=SimpleNamespace(takes_scopes=False)),
    )


def json_side(kind):
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
def test_body_fits_the_input(served, body):
    """The body is one that the handler takes, as far as it is known."""
    text = command(served, _URL, "")

    assert text.startswith("curl -H ")
    assert body in text
    assert text.endswith(_URL)


def test_large_bodies_are_piped_to_curl():
    """Tensors are written by Python; a picture is part of the command."""
    text = command(model("base_handler", None, TensorSpec("a", "FP32", (-1, 3, -1, 32))), _URL, "")
    writing = ["bash", "-c", text.partition(" | curl ")[0]]
    values = json.loads(subprocess.run(writing, capture_output=True, text=True, check=True).stdout)
    assert len(text) < 300
    assert text.endswith(f" --data-binary @- {_URL}")
    assert (len(values), len(values[0]), len(values[0][0])) == (3, 1, 32)

    text = command(model("image_classifier"), _URL, "")
    assert text.startswith(f"echo {_PIXEL} | base64 -d | curl ")
    assert Image.open(io.BytesIO(b64decode(_PIXEL))).convert("RGB").size == (1, 1)


def test_models_are_tried_where_they_are_served(tmp_path):
    """Those of OpenAI at their endpoint, applications at their root; the user's own file is the body."""
    served, openai, application = model(), model(), model()
    openai.endpoints = {"v1/embeddings": True, "v1/other": False}
    application.pool.dispatch.takes_scopes = True
    file = (tmp_path / "my file.jpg", "image/jpeg")
    typed = f"curl -H 'Content-Type: image/jpeg' --data-binary @'{tmp_path}/my file.jpg' {_URL}"
    inputs = """-d '{"model": "m", "input": ["a tensor", "a matrix"]}' http://127.0.0.1:8080/v1/embeddings"""

    assert command(openai, _URL, "").endswith(inputs)
    assert command(served, _URL, "", file) == typed
    assert command(application, _URL, "$TOKEN") == f'curl -H "Authorization: Bearer $TOKEN" {_URL}/'
    assert url_of(model(name="a b"), Settings()).endswith("/predictions/a%20b")
    application.options = application.options.changed({"route": "/api"}, "")
    assert url_of(application, Settings()) == "http://127.0.0.1:8080/api"
    assert command(openai, url_of(application, Settings()), "").endswith(inputs)


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
def test_examples_fit_their_schema(schema, value):
    assert example_of(schema, {}) == value
    recursive = {"T": {"type": "object", "required": ["t"], "properties": {"t": {"$ref": "#/x/T"}}}}
    assert "null" in json.dumps(example_of({"$ref": "#/x/T"}, recursive))


def test_token_is_read_by_the_shell(tmp_path):
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
