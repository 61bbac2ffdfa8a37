"""Health, V1's list of models, and descriptions of the routes of :mod:`modelserver.surface.inference`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES
from modelserver.engine.tensors.rest import HEADER_LENGTH
from modelserver.engine.tensors.tensor import VARIABLE, elements
from modelserver.errors import ServiceUnavailable
from modelserver.surface.api import descriptions as oas
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

    from modelserver.engine.tensors.tensor import TensorSpec
    from modelserver.engine.wire.messages import Annotations, Side
    from modelserver.models.options.signature import Signature
    from modelserver.models.registry import Registry

# Elements shown in an example.
_LONGEST_EXAMPLE = 8
_TENSOR = {"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
_NULL = {"type": "null"}
_ID = {"type": "string", "format": "uuid"}
_ANSWER_HEADERS = {
    "x-request-id": {"description": "The request's id, as the handler sees it.", "schema": _ID},
    "x-batch-id": {"description": "The id of the batch that the request was part of.", "schema": _ID},
    "x-batch-size": {"description": "Instances in that batch.", "schema": oas.WHOLE},
}
V1_READY = oas.operation(
    "Inference",
    "v1_modelReady",
    "Readiness of a model, V1 protocol.",
    oas.answers("Whether the model is ready.", oas.ref("V1Ready"), 404, 503),
)


def add_inference(app: FastAPI, registry: Registry) -> None:
    """Adds the routes for health and V1's readiness."""

    async def ping() -> Response:
        """Reference 6.2."""
        healthy = registry.healthy
        body = pretty({"status": "Healthy" if healthy else "Unhealthy"})
        return Response(body, 200 if healthy else 500, media_type=JSON)

    async def v1_models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    async def v1_model(name: str) -> JSONResponse:
        if not registry.is_ready(name):
            raise ServiceUnavailable(f"Model with name {name} is not ready.")
        return JSONResponse({"name": name, "ready": True})

    unhealthy = oas.answer("Some model has fewer healthy workers than its minimum.", oas.STATUS)
    health = {**oas.answers("Healthy.", oas.STATUS), "500": unhealthy}
    listed = oas.answers("The names of the registered models.", oas.ref("V1Models"))
    pinged = oas.operation("Health", "ping", "Health of the server.", health)
    names = oas.operation("Inference", "v1_listModels", "List the models, V1 protocol.", listed)
    oas.add(app, "/ping", ping, **oas.by_any_method("get", pinged, "options"))
    oas.add(app, "/v1/models", v1_models, get=names)
    oas.add(app, "/v1/models/{name}", v1_model, get=V1_READY)


def add_liveness(app: FastAPI) -> None:
    """Adds V1's liveness route (kserve reference 4 and 7.3), which TorchServe refuses."""

    async def alive() -> JSONResponse:
        return JSONResponse({"status": "alive"})

    about = "Whether the server lives, V1 protocol."
    oas.add(
        app,
        "/",
        alive,
        get=oas.operation("Health", "v1_alive", about, oas.answers("It answers.", oas.STATUS)),
    )


def add_predictions(app: FastAPI, describe: oas.Endpoint, describe_all: oas.Endpoint) -> None:
    """Adds descriptions of the prediction paths. Except KServe's, they take any body and, as in TorchServe,
    any method.

    ``describe`` answers OPTIONS on a path that names a model, ``describe_all`` on the one that does not. The
    oldest form matches many paths: routes with precedence must be added before.
    """
    for verb in ("predict", "explain"):
        add_hot(app, f"/v1/models/{{name}}:{verb}", describe, post=predict_v1(f"v1_{verb}", verb))
    for verb in ("infer", "explain"):
        for version, name in (("", verb), ("/versions/{version}", f"version_{verb}")):
            path = f"/v2/models/{{name}}{version}/{verb}"
            add_hot(app, path, describe, post=predict_v2(f"v2_{name}", verb))
    default, one, reach = "the default version of a model", "one version of a model", "reach the handler"
    asked = f"Predict, as SageMaker asks; query parameters {reach}."
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
        ("/models/{name}/invoke", "invoke", asked),
        ("/{name}/predict", "predict", old),
        (f"{versions}/predict", "version_predict", old),
    ):
        deprecated = {"deprecated": True} if summary == old else {}
        add_hot(app, path, describe, **oas.by_any_method("post", {**predict(name, summary), **deprecated}))
    model = oas.query(
        "model_name",
        "string",
        "The model; a field of a form may name it too. Not needed when exactly one was loaded at start.",
    )
    described = oas.by_any_method("post", {**predict("invocations", asked), "parameters": [model]})
    options = {**oas.description("invocations_options", "This document."), oas.UNLISTED: True}
    add_hot(app, "/invocations", describe_all, **described, options=options)


def add_hot(app: FastAPI, path: str, describe: oas.Endpoint, **operations: oas.Document) -> None:
    """Adds a path of which the application only gets OPTIONS; other methods are served before it."""
    operations = {"options": oas.own_description(operations["post"]["operationId"]), **operations}
    app.add_api_route(path, describe, methods=["OPTIONS"], openapi_extra=operations)


def predict(operation_id: str, summary: str, annotations: Annotations | None = None) -> oas.Document:
    """A path whose body goes to the handler, and whose answer is the handler's, typed by its annotations."""
    body: oas.Document = {
        "description": "What the model's handler expects: a file, JSON, or a form of several fields.",
        "content": {
            "*/*": {"schema": oas.BINARY, "example": "kitten.jpg"},
            JSON: {"schema": {}},
            "multipart/form-data": {"schema": oas.ANYTHING},
        },
    }
    # Without content: a handler may set any type, and with TorchServe's defaults there may be none.
    about = (
        "The handler's answer: bytes, text or JSON, with the status and content type that it "
        "sets. By default it is application/octet-stream, text/plain or application/json; with "
        "TorchServe's defaults only JSON has a content type."
    )
    done: oas.Document = {"description": about}
    if annotations is not None and annotations.inputs.media:
        body["content"] = {annotations.inputs.media: {"schema": _as_openapi(annotations.inputs.schema)}}
    if annotations is not None and annotations.outputs.media:
        schema = _as_openapi(annotations.outputs.schema)
        done["content"] = {annotations.outputs.media: {"schema": schema}}
    return _inference(operation_id, summary, done, body)


def predict_v1(operation_id: str, verb: str, annotations: Annotations | None = None) -> oas.Document:
    """A path of the V1 protocol, with instances and predictions typed by the handler's annotations."""
    body = oas.json_body(
        "The instances; other keys reach the handler.",
        _listing("V1Request", "instances", None if annotations is None else annotations.inputs),
        example={"instances": [[1.0, 2.0]]},
    )
    if annotations is not None and annotations.inputs.schema:
        del body["content"][JSON]["example"]
    answers = None if annotations is None else annotations.outputs
    done = oas.answer(
        "One prediction for each instance, in order.", _listing("V1Response", "predictions", answers)
    )
    return _inference(operation_id, f"{verb.capitalize()}, V1 protocol.", done, body)


def predict_v2(operation_id: str, verb: str, signature: Signature | None = None) -> oas.Document:
    """A path of the V2 protocol, with tensors typed by a model's signature."""
    inputs, outputs = (signature.inputs, signature.outputs) if signature is not None else ((), ())
    about = "Bytes of the JSON, where tensors in binary form follow it."
    length = {**oas.query(HEADER_LENGTH, "integer", about), "in": "header"}
    body = oas.json_body(
        "Tensors; the first dimension of each is the batch.",
        _typed("V2Request", "inputs", inputs),
        example={"inputs": [_example(spec) for spec in inputs] or [_TENSOR]},
    )
    done = oas.answer("Tensors.", _typed("V2Response", "outputs", outputs))
    for described in (body, done):
        described["content"]["application/octet-stream"] = {"schema": oas.BINARY}
    summary = f"{verb.capitalize()}, V2 (Open Inference) protocol."
    return {**_inference(operation_id, summary, done, body), "parameters": [length]}


def _inference(operation_id: str, summary: str, done: oas.Document, body: oas.Document) -> oas.Document:
    responses = {"200": {**done, "headers": _ANSWER_HEADERS}, **oas.errors(400, 404, 413, 500, 503, 504, 507)}
    return oas.operation("Inference", operation_id, summary, responses, body=body)


def schemas_of(annotations: Annotations | None) -> oas.Document:
    """The schemas that those of the annotations refer to, by name."""
    if annotations is None:
        return {}
    named = {**annotations.inputs.schemas, **annotations.outputs.schemas}
    return {name: _as_openapi(schema) for name, schema in named.items()}


def _listing(schema: str, key: str, side: Side | None) -> oas.Document:
    """The schema of all requests or answers, where the elements of the list ``key`` are of a type."""
    if side is None or not side.schema:
        return oas.ref(schema)
    return {"allOf": [oas.ref(schema), oas.record({key: oas.array(_as_openapi(side.schema))})]}


def _as_openapi(schema: Any) -> Any:
    """A JSON schema in the words of OpenAPI 3.0, which has no type null, no const and no tuples."""
    if isinstance(schema, list):
        return [_as_openapi(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: _as_openapi(value) for key, value in schema.items()}
    for key in ("anyOf", "oneOf"):
        if _NULL in said.get(key, ()):
            said |= {key: [each for each in said[key] if each != _NULL], "nullable": True}
    if "const" in said:
        said["enum"] = [said.pop("const")]
    if "prefixItems" in said:
        del said["prefixItems"]
        said["items"] = {}
    for limit in ("Minimum", "Maximum"):
        if f"exclusive{limit}" in said:
            said |= {limit.lower(): said.pop(f"exclusive{limit}"), f"exclusive{limit}": True}
    return {} if said == _NULL else said


def _typed(schema: str, side: str, specs: Sequence[TensorSpec]) -> oas.Document:
    """The schema of all requests or answers, restricted by the model's signature."""
    if not specs:
        return oas.ref(schema)
    tensors = oas.array({"oneOf": [_typed_tensor(spec) for spec in specs]})
    if side == "inputs":
        tensors |= {"minItems": len(specs), "maxItems": len(specs)}
    return {"allOf": [oas.ref(schema), oas.record({side: tensors})]}


def _typed_tensor(spec: TensorSpec) -> oas.Document:
    rank = len(spec.shape)
    about = f"{list(spec.shape)}; -1 is any size."
    own = {
        "name": {**oas.TEXT, "enum": [spec.name]},
        "shape": {**oas.SIZES, "minItems": rank, "maxItems": rank, "description": about},
        "datatype": {**oas.TEXT, "enum": [spec.datatype]},
    }
    return {"allOf": [oas.ref("V2Tensor"), oas.record(own)]}


def _example(spec: TensorSpec) -> oas.Document:
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


_ANY_LIST = oas.array({})
_TENSORS = oas.array(oas.ref("V2Tensor"))
SCHEMAS: oas.Document = {
    "V1Request": oas.record(
        {"instances": _ANY_LIST, "inputs": oas.told(_ANY_LIST, "Another name of instances.")},
        additionalProperties=True,
    ),
    "V1Response": oas.record(
        {"message": oas.TEXT, "batchId": _ID, "predictions": _ANY_LIST, "explanations": _ANY_LIST},
        description="batchId and message are there when the model batches.",
    ),
    "V1Models": oas.record({"models": oas.array(oas.TEXT)}, "models"),
    "V1Ready": oas.record({"name": oas.TEXT, "ready": oas.FLAG}, "name", "ready"),
    "V2Tensor": oas.record(
        {
            "name": oas.TEXT,
            "shape": oas.SIZES,
            "datatype": oas.TEXT,
            "parameters": oas.ANYTHING,
            "data": oas.array({}, "Row-major, flat or nested."),
        },
        *("name", "shape", "datatype"),
    ),
    "V2Request": oas.record(
        {
            "id": oas.TEXT,
            "parameters": oas.ANYTHING,
            "inputs": _TENSORS,
            "outputs": oas.array(oas.record({"name": oas.TEXT, "parameters": oas.ANYTHING}, "name")),
        },
        "inputs",
    ),
    "V2Response": oas.record(
        {
            "model_name": oas.TEXT,
            "model_version": oas.TEXT,
            "id": oas.TEXT,
            "parameters": oas.ANYTHING,
            "outputs": _TENSORS,
        },
        *("model_name", "outputs"),
    ),
}
