"""The operations of :mod:`modelserver.surface.inference`, which are served before the application, and the
document of one model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES
from modelserver.engine.tensors.tensor import VARIABLE, TensorSpec, elements
from modelserver.engine.wire.messages import Annotations
from modelserver.models.options.signature import Signature
from modelserver.surface.api import models
from modelserver.surface.api.application import (
    BINARY,
    Application,
    Document,
    JsonBody,
    Operation,
    as_openapi,
    document_of,
)
from modelserver.surface.api.routes import model_operations, set_default
from modelserver.surface.http.answers import JSON

# Elements shown in an example.
_LONGEST_EXAMPLE = 8
_TENSOR = {"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
_OCTETS = "application/octet-stream"
_ID = {"type": "string", "format": "uuid"}
_HEADERS = {
    "x-request-id": {"description": "The request's id, as the handler sees it.", "schema": _ID},
    "x-batch-id": {"description": "The id of the batch that the request was part of.", "schema": _ID},
    "x-batch-size": {"description": "Instances in that batch.", "schema": {"type": "integer"}},
}
_ERRORS = (400, 404, 413, 500, 503, 504, 507)


def add_predictions(app: Application, describe: Callable[..., Any], describe_all: Callable[..., Any]) -> None:
    """Describes the prediction paths. Except KServe's, they take any body and, as in TorchServe, any method.

    ``describe`` answers OPTIONS on a path that names a model, ``describe_all`` on the one that does not. The
    oldest form matches many paths: routes with precedence must be added before.
    """
    for verb in ("predict", "explain"):
        _add(app, describe, predict_v1(f"/v1/models/{{name}}:{verb}", f"v1_{verb}", verb))
    for verb in ("infer", "explain"):
        for version, name in (("", verb), ("/versions/{version}", f"version_{verb}")):
            _add(app, describe, predict_v2(f"/v2/models/{{name}}{version}/{verb}", f"v2_{name}", verb))
    default, one, reach = "the default version of a model", "one version of a model", "reach the handler"
    sagemaker = f"Predict, as SageMaker asks; query parameters {reach}."
    old = f"Predict, in the oldest form; query parameters {reach}."
    more = "The same; the handler gets the rest of the path."
    versions = "/{name}/{version}"
    for path, name, summary in (
        ("/predictions/{name}", "predictions", f"Predict with {default}."),
        (f"/predictions{versions}", "version_predictions", f"Predict with {one}."),
        (f"/predictions{versions}/{{rest:path}}", "path_predictions", more),
        ("/explanations/{name}", "explanations", f"Explain with {default}."),
        (f"/explanations{versions}", "version_explanations", f"Explain with {one}."),
        (f"/explanations{versions}/{{rest:path}}", "path_explanations", more),
        ("/models/{name}/invoke", "invoke", sagemaker),
        ("/{name}/predict", "predict", old),
        (f"{versions}/predict", "version_predict", old),
    ):
        _add(app, describe, predict(path, name, summary, others=("any",), deprecated=summary == old))
    add_model_description(app, describe_all, "/invocations", "invocations", "This document.")
    app.operations.append(
        predict("/invocations", "invocations", sagemaker, others=("any",), query=models.InvocationsQuery)
    )


def add_model_description(
    app: Application,
    describe: Callable[..., Any],
    path: str,
    name: str,
    about: str = "The API of this model.",
) -> None:
    """OPTIONS on a path that names a model."""
    errors = (404,) if "{" in path else ()
    operation = Operation(
        "Description", f"options {path}", f"{name}_options", about, models.AnyObject, errors, unlisted=True
    )
    app.add(describe, operation)


def _add(app: Application, describe: Callable[..., Any], operation: Operation) -> None:
    """Describes an operation of whose path the application only gets OPTIONS."""
    add_model_description(app, describe, operation.path, operation.name)
    app.operations.append(operation)


def predict(path: str, name: str, summary: str, **more: Any) -> Operation:
    """A path whose body goes to the handler, and whose answer is the handler's."""
    content = {
        "*/*": {"schema": BINARY, "example": "kitten.jpg"},
        JSON: {"schema": {}},
        "multipart/form-data": {"schema": {"type": "object", "additionalProperties": True}},
    }
    body = {"description": "What the model's handler expects: a file, JSON, or a form of several fields."}
    return Operation(
        "Inference",
        f"post {path}",
        name,
        summary,
        # Without content: a handler may set any type, and with TorchServe's defaults there may be none.
        None,
        _ERRORS,
        "The handler's answer: bytes, text or JSON, with the status and content type that it "
        "sets. By default it is application/octet-stream, text/plain or application/json; with "
        "TorchServe's defaults only JSON has a content type.",
        more={"requestBody": {**body, "content": content}, "responses": {"200": {"headers": _HEADERS}}},
        **more,
    )


def predict_v1(path: str, name: str, verb: str) -> Operation:
    """A path of the V1 protocol."""
    about = f"{verb.capitalize()}, V1 protocol.", "One prediction for each instance, in order."
    example = {"instances": [[1.0, 2.0]]}
    body = JsonBody(models.V1Request, "The instances; other keys reach the handler.", example)
    return _predict_kserve(path, name, about, result=models.V1Response, body=body)


def predict_v2(path: str, name: str, verb: str) -> Operation:
    """A path of the V2 protocol."""
    about = f"{verb.capitalize()}, V2 (Open Inference) protocol.", "Tensors."
    tensors, content = "Tensors; the first dimension of each is the batch.", {_OCTETS: {"schema": BINARY}}
    body = JsonBody(models.V2Request, tensors, {"inputs": [_TENSOR]}, more=content)
    more = {"result": models.V2Response, "headers": models.V2Headers, "body": body}
    return _predict_kserve(path, name, about, {"content": content}, **more)


def _predict_kserve(
    path: str, name: str, about: tuple[str, str], response: Document | None = None, **more: Any
) -> Operation:
    """``about``: the summary, and what the response is."""
    more["more"] = {"responses": {"200": {"headers": _HEADERS, **(response or {})}}}
    return Operation("Inference", f"post {path}", name, about[0], errors=_ERRORS, about=about[1], **more)


def describe_model(
    name: str,
    version: str | None = None,
    signature: Signature | None = None,
    annotations: Annotations | None = None,
) -> Document:
    """The document of one model's inference API (reference 6.3), with its actual paths.

    With a signature, its V2 requests and answers are typed; with ``annotations`` of its handler, the others.
    """
    segment = _segment(name)
    path = f"/predictions/{segment}" + (f"/{_segment(version)}" if version else "")
    v2 = f"/v2/models/{segment}" + (f"/versions/{_segment(version)}" if version else "")
    paths = (path, f"/v1/models/{segment}:predict", f"{v2}/infer")
    document = _at(paths, f"RESTful API for: {name}", _of_any_model())
    own, of_v1, of_v2 = (item["post"] for item in document["paths"].values())
    if annotations is not None:
        _type_by_annotations(own, of_v1, annotations)
        named = {**annotations.inputs.schemas, **annotations.outputs.schemas}
        document["components"]["schemas"] |= {key: as_openapi(schema) for key, schema in named.items()}
    if signature is not None:
        body, response = of_v2["requestBody"]["content"][JSON], of_v2["responses"]["200"]["content"][JSON]
        body["schema"] = _typed("V2Request", "inputs", signature.inputs)
        response["schema"] = _typed("V2Response", "outputs", signature.outputs)
        body["example"] = {"inputs": [_example(spec) for spec in signature.inputs] or [_TENSOR]}
    return document


def _type_by_annotations(own: Document, of_v1: Document, annotations: Annotations) -> None:
    bodies = own["requestBody"], of_v1["requestBody"]
    responses = own["responses"]["200"], of_v1["responses"]["200"]
    for side, (of_own, of_list), schema, key in (
        (annotations.inputs, bodies, "V1Request", "instances"),
        (annotations.outputs, responses, "V1Response", "predictions"),
    ):
        if side.media:
            of_own["content"] = {side.media: {"schema": as_openapi(side.schema)}}
        if side.schema:
            # Of all requests or answers, where the elements of the list are of a type.
            elements_of_list = {"type": "array", "items": as_openapi(side.schema)}
            of_list["content"][JSON] = {"schema": _extended(schema, key, elements_of_list)}


def describe_model_management(name: str, version: str | None = None) -> Document:
    """The document of one model's management API, the answer to OPTIONS (reference 5.1)."""
    path = f"/models/{_segment(name)}" + (f"/{_segment(version)}" if version else "")
    document = _management_of_any_model(is_version=bool(version))
    return _at((path, f"{path}/set-default"), f"RESTful Management API for: {name}", document)


# Generated once: browsers ask for the document of a model before each request to another origin.
@cache
def _of_any_model() -> Document:
    operations = (
        predict("/own", "predictions", "Predict with this model."),
        predict_v1("/v1", "v1_predict", "predict"),
        predict_v2("/v2", "v2_infer", "infer"),
    )
    return document_of(operations, title="", version="1.0.0")


@cache
def _management_of_any_model(*, is_version: bool) -> Document:
    operations = [*model_operations("/own", "version_" if is_version else "")]
    if is_version:
        operations.append(set_default("/own"))
    return document_of(operations, title="", version="1.0.0")


def _at(paths: Iterable[str], title: str, document: Document) -> Document:
    """The document of a model, with its actual paths."""
    own = copy.deepcopy(document)
    own["info"]["title"] = title
    own["paths"] = dict(zip(paths, own["paths"].values(), strict=False))
    return own


def _segment(name: str) -> str:
    """``name`` as one segment of a path; unescaped braces would be a template."""
    return quote(name, safe="")


def _extended(schema: str, key: str, value: Document) -> Document:
    """One of the models, with a field of a type of its own."""
    own = {"type": "object", "properties": {key: value}}
    return {"allOf": [{"$ref": f"#/components/schemas/{schema}"}, own]}


def _typed(schema: str, side: str, specs: Sequence[TensorSpec]) -> Document:
    """The schema of all requests or answers, restricted by the model's signature."""
    if not specs:
        return {"$ref": f"#/components/schemas/{schema}"}
    tensors: Document = {"type": "array", "items": {"oneOf": [_typed_tensor(spec) for spec in specs]}}
    if side == "inputs":
        tensors |= {"minItems": len(specs), "maxItems": len(specs)}
    return _extended(schema, side, tensors)


def _typed_tensor(spec: TensorSpec) -> Document:
    rank = len(spec.shape)
    about = f"{list(spec.shape)}; -1 is any size."
    sizes = {"type": "array", "items": {"type": "integer", "format": "int64"}}
    own = {
        "name": {"type": "string", "enum": [spec.name]},
        "shape": {**sizes, "minItems": rank, "maxItems": rank, "description": about},
        "datatype": {"type": "string", "enum": [spec.datatype]},
    }
    return {"allOf": [{"$ref": "#/components/schemas/V2Tensor"}, {"type": "object", "properties": own}]}


def _example(spec: TensorSpec) -> Document:
    shape = [1 if size == VARIABLE else size for size in spec.shape]
    tensor = {"name": spec.name, "shape": shape, "datatype": spec.datatype}
    count = elements(shape)
    if spec.datatype == BYTES:
        return {**tensor, "data": ["text"] * min(count, _LONGEST_EXAMPLE)}
    datatype = DATATYPES[spec.datatype]
    if count > _LONGEST_EXAMPLE:
        return {**tensor, "parameters": {"binary_data_size": count * datatype.width}}
    value = {bool: True, int: 1, float: 1.0}[datatype.json_type]
    return {**tensor, "data": [value] * count}
