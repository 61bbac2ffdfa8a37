import io
import json
from types import SimpleNamespace

import pytest
from PIL import Image

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.engine.wire.messages import Annotations, Side
from modelserver.models.options.signature import Signature
from modelserver.tools.doctor.samples import JSON, InputRow, bad_samples, made_samples, read_samples


def model(inputs=None, *specs):
    return SimpleNamespace(
        annotations=None if inputs is None else Annotations(inputs), signature=Signature(specs)
    )


def test_files_become_samples(tmp_path):
    for name in ("b.json", "a.png", "c"):
        (tmp_path / name).write_bytes(name.encode())

    read = read_samples([tmp_path, tmp_path / "c"], None)
    assert [each.name.removeprefix(f"{tmp_path}/") for each in read] == ["a.png", "b.json", "c", "c"]
    assert [each.content_type for each in read] == ["image/png", JSON, "", ""]
    assert read_samples([tmp_path / "c"], "text/x")[0].all_headers == {"content-type": "text/x"}
    assert read_samples([], None) == []


_FIELDS = {"a": {"type": "string"}, "b": {"type": "boolean"}}
_OBJECT = {"type": "object", "required": ["a", "b"], "properties": _FIELDS}


@pytest.mark.parametrize(
    ("served", "base", "bodies"),
    [
        (model(), "", []),
        (model(Side()), "typed.handler", []),
        (model(Side([], JSON, {"type": "integer"})), "typed.handler", [1, 2, 3]),
        (model(Side([], JSON, {"type": "array", "items": {"type": "number"}})), "", [[1.0], [2.0], [3.0]]),
        (model(Side([], JSON, _OBJECT)), "", [{"a": "text", "b": True}] * 3),
    ],
)
def test_json_rows_are_made_from_schema(served, base, bodies):
    assert [json.loads(each.body) for each in made_samples(served, base)] == bodies


def test_tensors_are_made_from_signature():
    (first, second, _) = made_samples(model(None, TensorSpec("x", "FP32", (-1, 2, -1))), "base")
    specs = TensorSpec("x", "INT64", (-1,)), TensorSpec("t", "BYTES", (-1, 1))
    named = made_samples(model(None, *specs), "base")

    assert [len(row) for row in json.loads(first.body)] == [2, 2]
    assert first.body != second.body
    row = json.loads(named[0].body)
    assert row["x"] in {0, 1}
    assert isinstance(row["t"][0], str)


def test_pictures_and_texts_are_made_for_builtin_handlers():
    pictures = [Image.open(io.BytesIO(each.body)) for each in made_samples(model(), "image_classifier")]
    texts = made_samples(model(), "text_classifier")
    annotated = made_samples(model(Side([], "text/plain", {})), "typed.handler")

    assert [picture.size for picture in pictures] == [(64, 48), (48, 64), (80, 80)]
    assert len({each.body for each in texts}) == 3
    assert texts == annotated


def test_bad_rows_differ_in_type():
    (picture,) = bad_samples(InputRow("a", b"\x89PNG", "image/png"))
    assert (picture.content_type, picture.body[:2]) == ("image/png", b"\x00\xff")
    assert [json.loads(each.body) for each in bad_samples(InputRow("a", b"[1]", JSON))] == ["a bad row", None]
    assert json.loads(bad_samples(InputRow("a", b' "text"', JSON))[0].body) == {"a bad": "row"}
