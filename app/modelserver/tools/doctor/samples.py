"""The inputs of a check: given as files, or made from what is known of the model."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES
from modelserver.engine.tensors.tensor import VARIABLE, TensorSpec
from modelserver.models.version import ModelVersion
from modelserver.tools.commands import read_inputs
from modelserver.tools.serve.example import example_of

JSON: Final = "application/json"
TEXT: Final = "text/plain"
# Built-in handlers by what they take; those that extend them take the same.
_PICTURES: Final = {"image_classifier", "image_segmenter", "object_detector", "densenet_handler", "vision"}
_TEXTS: Final = {"text_classifier", "text_handler"}
_SENTENCES: Final = (
    "A great book, and a warm evening.",
    "The parcel arrived broken.",
    "Nobody answered my question about the weather.",
)
_SIDES: Final = ((64, 48), (48, 64), (80, 80))
COUNT: Final = 3
"""How many inputs are made."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row: a body, its content type (empty for none) and headers; ``name`` is for people."""

    name: str
    body: bytes
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers, with the content type."""
        typed = {"content-type": self.content_type} if self.content_type else {}
        return {**typed, **self.headers}

    @property
    def is_json(self) -> bool:
        """Whether the worker decodes it."""
        return self.content_type.partition(";")[0].strip() == JSON


def read_samples(paths: Sequence[Path], content_type: str | None) -> list[InputRow]:
    """The files; of a folder, its files in the order of their names. Raises ConfigError."""
    return [InputRow(str(path), body, kind) for path, body, kind in read_inputs(paths, content_type)]


def made_samples(model: ModelVersion, base: str) -> list[InputRow]:
    """Inputs for a model, none if it is not known what it takes; ``base`` is its built-in handler."""
    annotations = model.annotations
    if annotations is not None and annotations.inputs.media:
        side = annotations.inputs
        if side.media != JSON:
            return _texts(side.media)
        first = example_of(side.schema, side.schemas)
        return [_in_json(number, _varied(first, number)) for number in range(COUNT)]
    if base in _PICTURES:
        return [InputRow(f"picture {number + 1}", _picture(number), "image/png") for number in range(COUNT)]
    if base in _TEXTS:
        return _texts(TEXT)
    if model.signature.inputs:
        return [_in_json(number, _tensors(model.signature.inputs, number)) for number in range(COUNT)]
    return []


def bad_samples(good: InputRow) -> list[InputRow]:
    """Rows that a handler of such rows can hardly take."""
    if not good.is_json:
        return [InputRow("bytes that are no such file", b"\x00\xff\xfe not one of these", good.content_type)]
    other: Any = "a bad row" if good.body.lstrip()[:1] != b'"' else {"a bad": "row"}
    return [
        InputRow("a JSON value of another type", json.dumps(other).encode(), JSON),
        InputRow("JSON null", b"null", JSON),
    ]


def _texts(media: str) -> list[InputRow]:
    return [InputRow(f"text {number + 1}", text.encode(), media) for number, text in enumerate(_SENTENCES)]


def _in_json(number: int, value: Any) -> InputRow:
    return InputRow(f"row {number + 1}", json.dumps(value).encode(), JSON)


def _varied(value: Any, number: int) -> Any:
    """Another value of the same form, the first one unchanged."""
    if not number or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value + number
    if isinstance(value, list):
        return [_varied(each, number) for each in value]
    if isinstance(value, dict):
        return {key: _varied(each, number) for key, each in value.items()}
    return value


def _tensors(specs: Sequence[TensorSpec], number: int) -> Any:
    chance = random.Random(number)  # noqa: S311 - for inputs, not for secrets
    rows = {}
    for spec in specs:
        shape = [2 if size == VARIABLE else size for size in spec.shape[1:]]
        values = [_value(spec, chance) for _ in range(math.prod(shape))]
        rows[spec.name] = numpy.array(values, object).reshape(shape).tolist()
    return rows if len(rows) > 1 else next(iter(rows.values()))


def _value(spec: TensorSpec, chance: random.Random) -> Any:
    if spec.datatype == BYTES:
        return chance.choice(_SENTENCES)
    kind = DATATYPES[spec.datatype].json_type
    if kind is bool:
        return chance.random() < 0.5
    return chance.randrange(2) if kind is int else round(chance.uniform(-1.0, 1.0), 3)


def _picture(number: int) -> bytes:
    """A PNG with colours that run across it, and a figure."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 - only where pictures are made

    width, height = _SIDES[number % len(_SIDES)]
    ramps = [Image.linear_gradient("L").resize((width, height)).rotate(90 * (number + c)) for c in range(3)]
    picture = Image.merge("RGB", [ramp.resize((width, height)) for ramp in ramps])
    drawing = ImageDraw.Draw(picture)
    box = (10 + 4 * number, 8, 34 + 4 * number, 36)
    (drawing.ellipse if number % 2 else drawing.rectangle)(box, fill=(250, 60 * number, 20))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
