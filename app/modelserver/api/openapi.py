"""The OpenAPI 3.0.1 documents that the listeners describe themselves with (reference 4.5, 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from modelserver.options.resolve import PARAMETERS
from modelserver.options.table import CHANGEABLE, OPTIONS
from modelserver.tensors.datatypes import BYTES, DATATYPES
from modelserver.tensors.tensor import VARIABLE, elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.options.signature import Signature
    from modelserver.tensors.tensor import TensorSpec

Document: TypeAlias = dict[str, Any]
ListenerKind: TypeAlias = Literal["inference", "management", "metrics", "all"]

TITLE = "modelserver APIs"
DESCRIPTION = "modelserver serves PyTorch models, with TorchServe's APIs and batching built in."

_OPENAPI = "3.0.1"
_JSON = "application/json"
_ANY = "*/*"
_METHODS = ("get", "head", "post", "put", "patch", "delete")
_WITHOUT_BODY = frozenset({"get", "head", "delete"})
# Marks operations that the page for people leaves out: another method of a path does the same.
UNLISTED = "x-unlisted"

# Of the parameters of a registration; the others are between them.
_FIRST = (
    *("url", "model_name", "handler", "runtime", "batch_size", "max_batch_size", "max_batch_delay"),
    *("max_latency", "batch_policy", "timeout", "initial_workers"),
)
_LAST = ("synchronous", "response_timeout", "startup_timeout", "s3_sse_kms")

# Elements that an example shows.
_LONGEST_EXAMPLE = 8
_TENSOR = {"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
_ERRORS = {
    400: "The request cannot be understood.",
    403: "The default version cannot be removed while others exist.",
    404: "No such model or version.",
    405: "The method is not allowed, or this API is switched off.",
    408: "Timed out while cleaning up.",
    409: "This name and version are registered already.",
    413: "The body is larger than max_request_size.",
    500: "The handler or its worker failed.",
    503: "The queue is full, no worker serves the model, or the handler raised.",
    504: "The deadline passed.",
    507: "A worker ran out of memory.",
}
_ANSWER_HEADERS = {
    "x-request-id": ("The request's id, as the handler sees it.", {"type": "string", "format": "uuid"}),
    "x-batch-id": ("The id of the batch that the request was part of.", {"type": "string", "format": "uuid"}),
    "x-batch-size": ("Instances in that batch.", {"type": "integer"}),
}


def describe_listener(kind: ListenerKind, version: str) -> Document:
    """The document of one listener, or of ``all`` of them in one; ``version`` is the server's."""
    parts = {
        "inference": (_inference_paths,),
        "management": (_management_paths,),
        "metrics": (),
        "all": (_inference_paths, _management_paths),
    }[kind]
    paths: Document = {"/": {}}
    for part in (*parts, _common_paths):
        for path, operations in part().items():
            paths.setdefault(path, {}).update(operations)
    return _document({"title": TITLE, "description": DESCRIPTION, "version": version}, paths)


def describe_model(name: str, version: str | None = None, *, signature: Signature | None = None) -> Document:
    """The document of one model's inference API (reference 6.3), with its real paths.

    With a signature its V2 requests and answers are typed.
    """
    segment = _segment(name)
    path = f"/predictions/{segment}" + (f"/{_segment(version)}" if version else "")
    v2 = f"/v2/models/{segment}" + (f"/versions/{_segment(version)}" if version else "")
    paths = {
        path: {"post": _predict("predictions", "Predict with this model.", [])},
        f"/v1/models/{segment}:predict": {"post": _v1("v1_predict", "Predict, V1 protocol.", [])},
        f"{v2}/infer": {"post": _v2("v2_infer", _INFER, [], signature)},
    }
    return _document({"title": f"RESTful API for: {name}", "version": "1.0.0"}, paths)


def describe_model_management(name: str, version: str | None = None) -> Document:
    """The document of one model's management API: what OPTIONS on it answers (reference 5.1)."""
    path = f"/models/{_segment(name)}"
    paths = {path: _model_operations("", [])}
    if version:
        path = f"{path}/{_segment(version)}"
        paths = {path: _model_operations("version_", []), f"{path}/set-default": {"put": _set_default([])}}
    return _document({"title": f"RESTful Management API for: {name}", "version": "1.0.0"}, paths)


def _document(info: Document, paths: Document) -> Document:
    return {"openapi": _OPENAPI, "info": info, "paths": paths, "components": {"schemas": _schemas()}}


# The listeners


def _inference_paths() -> Document:
    model, version = _path_parameter("model_name"), _path_parameter("model_version")
    alive = {"200": _json_response("It answers.", _ref("Status"))}
    workflow = _workflow("wfpredict", "Call a workflow; there are none, call the models instead.")
    return {
        "/": {"get": _operation("Health", "v1_alive", "Whether the server lives, V1 protocol.", [], alive)},
        "/ping": _by_any_method("get", _ping(), "options"),
        "/v1/models": {"get": _v1_list()},
        "/v1/models/{model_name}": {"get": _v1_ready(), "options": _own_description("v1_model", [model])},
        "/v1/models/{model_name}:predict": _by_post(_v1("v1_predict", "Predict, V1 protocol.", [model])),
        "/v1/models/{model_name}:explain": _by_post(_v1("v1_explain", "Explain, V1 protocol.", [model])),
        **_v2_paths(model, version),
        **_prediction_paths(model, version),
        "/wfpredict/{workflow_name}": _by_any_method("post", workflow, "options"),
    }


def _prediction_paths(model: Document, version: Document) -> Document:
    """What takes any body and, as TorchServe, any method."""
    rest = _path_parameter("url_path")
    invoke = "Predict, as SageMaker asks; query parameters reach the handler."
    old = "Predict, in the oldest form; query parameters reach the handler."
    operations = {
        "/predictions/{model_name}": _predict(
            "predictions", "Predict with the default version of a model.", [model]
        ),
        "/predictions/{model_name}/{model_version}": _predict(
            "version_predictions", "Predict with one version of a model.", [model, version]
        ),
        "/predictions/{model_name}/{model_version}/{url_path}": _predict(
            "path_predictions", "The same; the handler gets the rest of the path.", [model, version, rest]
        ),
        "/explanations/{model_name}": _predict(
            "explanations", "Explain with the default version of a model.", [model]
        ),
        "/explanations/{model_name}/{model_version}": _predict(
            "version_explanations", "Explain with one version of a model.", [model, version]
        ),
        "/invocations": _invocations(invoke),
        "/models/{model_name}/invoke": _predict("invoke", invoke, [model]),
        "/{model_name}/predict": {**_predict("predict", old, [model]), "deprecated": True},
        "/{model_name}/{model_version}/predict": {
            **_predict("version_predict", old, [model, version]),
            "deprecated": True,
        },
    }
    paths = {path: _by_any_method("post", operation) for path, operation in operations.items()}
    for path, item in paths.items():
        operation = operations[path]
        item["options"] = _own_description(operation["operationId"], operation["parameters"])
    paths["/invocations"]["options"] = _unlisted(_description("invocations_options", "This document."))
    return paths


def _management_paths() -> Document:
    model, version = _path_parameter("model_name"), _path_parameter("model_version")
    return {
        "/models": {"get": _list_models(), "post": _register()},
        "/models/{model_name}": {
            **_model_operations("", [model]),
            "options": _own_description("management_model", [model]),
        },
        "/models/{model_name}/{model_version}": {
            **_model_operations("version_", [model, version]),
            "options": _own_description("management_version", [model, version]),
        },
        "/models/{model_name}/{model_version}/set-default": {"put": _set_default([model, version])},
        "/v1/models/{model_name}": {"get": _v1_ready()},
        "/logging": _logging_operations(),
        "/token": _by_any_method("get", _token(), "options"),
        **_workflow_paths(),
        **_repository_paths(model),
    }


def _workflow_paths() -> Document:
    """Of TorchServe's workflows, of which there are none: they cannot be registered (reference 19)."""
    listed = _object({"workflows": {"type": "array", "items": {"type": "object"}}}, required=["workflows"])
    none = {"200": _json_response("An empty list.", listed)}
    register, list_all = "Register a workflow: always refused.", "List the workflows: there are none."
    return {
        "/workflows": {
            "get": _operation("Workflows", "listWorkflows", list_all, [], none),
            "post": _operation("Workflows", "registerWorkflow", register, [], _errors(400)),
        },
        "/workflows/{workflow_name}": {
            "get": _workflow("describeWorkflow", "Describe a workflow; there are none."),
            "delete": _workflow("unregisterWorkflow", "Unregister a workflow; there are none."),
        },
    }


def _workflow(operation_id: str, summary: str) -> Document:
    return _operation("Workflows", operation_id, summary, [_path_parameter("workflow_name")], _errors(404))


def _token() -> Document:
    kind = _query("type", "string", "Which token.", enum=["inference", "management"])
    responses = {
        "200": {"description": "An empty line; the new token is in key_file.json."},
        **_errors(400, 404, 409),
    }
    summary = "Make a new token in place of the last one, asked with the API token; 404 without tokens."
    return _operation("Management", "renewToken", summary, [{**kind, "required": True}], responses)


def _logging_operations() -> Document:
    shown = _json_response("The level.", _object({"level": {"type": "string"}}))
    described = _query("level", "string", "debug, info, warn or error.", example="debug")
    level = {**described, "required": True}
    asked, changed = "How much the server logs.", "Change how much the server logs."
    return {
        "get": _operation("Management", "getLogLevel", asked, [], {"200": shown}),
        "put": _operation("Management", "setLogLevel", changed, [level], {"200": shown, **_errors(400)}),
    }


def _common_paths() -> Document:
    deprecated = _description("api_description", "This document; deprecated, use OPTIONS /.")
    page = {"200": {"description": "A page.", "content": {"text/html": {"schema": {"type": "string"}}}}}
    return {
        "/": {"options": _description("apiDescription", "This document.")},
        "/api-description": _by_any_method("get", {**deprecated, "deprecated": True}, "options"),
        "/openapi.json": {"get": _description("openapi", "This document.")},
        "/docs": {"get": _operation("Description", "docs", "This document, for people.", [], page)},
        **_probe_paths(),
        **_metrics_paths(),
    }


def _probe_paths() -> Document:
    live = {"200": _json_response("It answers.", _ref("Status"))}
    ready = {
        "200": _json_response("Every model that should have workers has a loaded one.", _ref("Status")),
        **_errors(503),
    }
    operations = {
        "/livez": _operation("Health", "livez", "Whether the server lives.", [], live),
        "/readyz": _operation("Health", "readyz", "Whether all models are ready.", [], ready),
    }
    return {path: {"get": each, "head": _also("head", each)} for path, each in operations.items()}


def _metrics_paths() -> Document:
    names = {
        "in": "query",
        "name": "name[]",
        "description": "Only metrics of these names; may be repeated.",
        "schema": {"type": "array", "items": {"type": "string"}},
        "style": "form",
        "explode": True,
    }
    text = {"text/plain; version=0.0.4; charset=utf-8": {"schema": {"type": "string"}}}
    elsewhere = _json_response("This listener has no metrics: they are at metrics_address.", _ref("Error"))
    responses = {
        "200": {"description": "Metrics in Prometheus' text format.", "content": text},
        "404": elsewhere,
    }
    metrics = _operation("Metrics", "metrics", "Metrics.", [names], responses)
    return {"/metrics": _by_any_method("get", metrics)}


# Inference operations


def _ping() -> Document:
    responses = {
        "200": _json_response("Healthy.", _ref("Status")),
        "500": _json_response("Some model has fewer healthy workers than its minimum.", _ref("Status")),
    }
    return _operation("Health", "ping", "Health of the server.", [], responses)


def _predict(operation_id: str, summary: str, parameters: list[Document]) -> Document:
    anything = {"schema": {"type": "string", "format": "binary"}}
    body = {
        "description": "What the model's handler expects: a file, JSON, or a form of several fields.",
        "content": {
            _ANY: {**anything, "example": "kitten.jpg"},
            _JSON: {"schema": {}},
            "multipart/form-data": {"schema": {"type": "object", "additionalProperties": True}},
        },
    }
    # Without content: a handler that names no content type gets none, as from TorchServe.
    answer = {
        "description": "The handler's answer: bytes, text or JSON, of the status and content type that it "
        "sets. Without one, JSON is named as such, and nothing else is.",
        "headers": _answer_headers(),
    }
    responses = {"200": answer, **_errors(400, 404, 413, 500, 503, 504, 507)}
    return _operation("Inference", operation_id, summary, parameters, responses, body=body)


def _invocations(summary: str) -> Document:
    parameter = _query(
        "model_name",
        "string",
        "The model; a field of a form may name it too. Not needed when exactly one was loaded at start.",
    )
    return _predict("invocations", summary, [parameter])


def _v1(operation_id: str, summary: str, parameters: list[Document]) -> Document:
    body = _json_body(
        "The instances; other keys reach the handler.", _ref("V1Request"), example={"instances": [[1.0, 2.0]]}
    )
    answer = _json_response("One prediction for each instance, in order.", _ref("V1Response"))
    responses = {
        "200": {**answer, "headers": _answer_headers()},
        **_errors(400, 404, 413, 500, 503, 504, 507),
    }
    return _operation("Inference", operation_id, summary, parameters, responses, body=body)


_INFER = "Infer, V2 (Open Inference) protocol."
_EXPLAIN = "Explain, V2 (Open Inference) protocol."


def _v2(
    operation_id: str, summary: str, parameters: list[Document], signature: Signature | None = None
) -> Document:
    inputs, outputs = (signature.inputs, signature.outputs) if signature is not None else ((), ())
    binary = {"schema": {"type": "string", "format": "binary"}}
    length = {
        "in": "header",
        "name": "Inference-Header-Content-Length",
        "description": "Bytes of the JSON, where tensors in binary form follow it.",
        "schema": {"type": "integer"},
    }
    example = {"inputs": [_example(spec) for spec in inputs] or [_TENSOR]}
    body = _json_body(
        "Tensors; the first dimension of each is the batch.",
        _typed("V2Request", "inputs", inputs),
        example=example,
    )
    answer = _json_response("Tensors.", _typed("V2Response", "outputs", outputs))
    for described in (body, answer):
        described["content"]["application/octet-stream"] = binary
    parameters = [*parameters, length]
    responses = {
        "200": {**answer, "headers": _answer_headers()},
        **_errors(400, 404, 413, 500, 503, 504, 507),
    }
    return _operation("Inference", operation_id, summary, parameters, responses, body=body)


def _typed(schema: str, side: str, specs: Sequence[TensorSpec]) -> Document:
    """The schema of all requests or answers, and what the model's signature says of the tensors of one."""
    if not specs:
        return _ref(schema)
    tensors: Document = {"type": "array", "items": {"oneOf": [_typed_tensor(spec) for spec in specs]}}
    if side == "inputs":
        tensors |= {"minItems": len(specs), "maxItems": len(specs)}
    return {"allOf": [_ref(schema), _object({side: tensors})]}


def _typed_tensor(spec: TensorSpec) -> Document:
    rank = len(spec.shape)
    shape = {
        "type": "array",
        "items": {"type": "integer", "format": "int64"},
        "minItems": rank,
        "maxItems": rank,
        "description": f"{list(spec.shape)}; -1 is any size.",
    }
    own = {"name": {"type": "string", "enum": [spec.name]}, "shape": shape}
    own["datatype"] = {"type": "string", "enum": [spec.datatype]}
    return {"allOf": [_ref("V2Tensor"), _object(own)]}


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


def _v2_paths(model: Document, version: Document) -> Document:
    one = "/v2/models/{model_name}"
    paths: Document = {
        "/v2": {"get": _v2_get("v2_server", "Name, version and extensions of the server.", [], "V2Server")},
        "/v2/health/live": {"get": _v2_get("v2_live", "Whether the server lives.", [], "V2Live")},
        "/v2/health/ready": {"get": _v2_get("v2_ready", "Whether all models are ready.", [], "V2Ready", 503)},
        "/v2/models": {"get": _v2_get("v2_models", "List the models.", [], "V1Models")},
        **_repository_paths(model),
    }
    for prefix, path, where in (
        ("", one, [model]),
        ("version_", f"{one}/versions/{{model_version}}", [model, version]),
    ):
        metadata = _v2_get(f"v2_{prefix}model", "Inputs and outputs of a model.", where, "V2Model", 404)
        ready = _v2_get(
            f"v2_{prefix}modelReady", "Whether a model is ready.", where, "V2ModelReady", 404, 503
        )
        paths[path] = {"get": metadata}
        paths[f"{path}/ready"] = {"get": ready}
        paths[f"{path}/infer"] = _by_post(_v2(f"v2_{prefix}infer", _INFER, where))
        paths[f"{path}/explain"] = _by_post(_v2(f"v2_{prefix}explain", _EXPLAIN, where))
    return paths


def _v2_get(
    operation_id: str, summary: str, parameters: list[Document], schema: str, *errors: int
) -> Document:
    responses = {"200": _json_response(summary, _ref(schema)), **_errors(*errors)}
    return _operation("Open Inference", operation_id, summary, parameters, responses)


def _repository_paths(model: Document) -> Document:
    entries = {"type": "array", "items": _ref("RepositoryModel")}
    index = _json_body(
        "Which are wanted.",
        _object({"ready": {"type": "boolean", "default": False}}),
        example={},
        required=False,
    )
    body = _json_body("Nothing needs to be said.", _object({}), example={}, required=False)

    def change(verb: str, summary: str, *statuses: int) -> Document:
        done = _object({"name": {"type": "string"}, verb: {"type": "boolean"}}, required=["name", verb])
        responses = {"200": _json_response("Done.", done), **_errors(*statuses)}
        return _operation("Repository", f"repository_{verb}", summary, [model], responses, body=body)

    listed = {"200": _json_response("The models.", entries), **_errors(400)}
    summary = "The loaded models, and those of the model store that could be loaded."
    load = change(
        "load", "Load a model from the model store, also one that is loaded.", 400, 404, 405, 500, 503
    )
    return {
        "/v2/repository/index": {
            "post": _operation("Repository", "repository_index", summary, [], listed, body=index)
        },
        "/v2/repository/models/{model_name}/load": {"post": load},
        "/v2/repository/models/{model_name}/unload": {
            "post": change("unload", "Unload all versions of a model.", 400, 404, 405)
        },
    }


def _v1_list() -> Document:
    responses = {"200": _json_response("The names of the registered models.", _ref("V1Models"))}
    return _operation("Inference", "v1_listModels", "List the models, V1 protocol.", [], responses)


def _v1_ready() -> Document:
    responses = {
        "200": _json_response("Whether the model is ready.", _ref("V1Ready")),
        **_errors(404, 503),
    }
    parameters = [_path_parameter("model_name")]
    return _operation(
        "Inference", "v1_modelReady", "Readiness of a model, V1 protocol.", parameters, responses
    )


# Management operations


def _list_models() -> Document:
    parameters = [
        _query("limit", "integer", "Models on a page, at most 100.", default=100),
        _query("next_page_token", "string", "nextPageToken of the page before."),
    ]
    responses = {"200": _json_response("The models, by name.", _ref("ModelList"))}
    return _operation("Management", "listModels", "List the registered models.", parameters, responses)


def _register() -> Document:
    responses = {
        "200": _json_response("Registered, with its workers ready.", _ref("Status")),
        "202": _json_response("Registered; its workers are starting.", _ref("Status")),
        "206": _json_response("Registered, with fewer workers than asked for so far.", _ref("Status")),
        **_errors(400, 404, 405, 409, 500, 507),
    }
    parameters = [_query(name, **spec) for name, spec in _register_parameters().items()]
    body = _json_body(
        "The same parameters; with a JSON body the query is not read.",
        _ref("RegisterRequest"),
        example={"url": "resnet-152.mar", "initial_workers": 1},
        required=False,
    )
    summary = "Register a model. The url comes from the query or from a JSON body."
    return _operation("Management", "registerModel", summary, parameters, responses, body=body)


def _register_parameters() -> dict[str, Document]:
    names = dict.fromkeys((*_FIRST, *(name for name in PARAMETERS if name not in _LAST), *_LAST))
    rows = {name: PARAMETERS[name] for name in names}
    return {
        name: {"type_": row.values.type, "description": row.description, **row.schema}
        for name, row in rows.items()
    }


def _model_operations(prefix: str, parameters: list[Document]) -> Document:
    return {
        "get": _describe(f"{prefix}describeModel", parameters),
        "put": _scale(f"{prefix}setAutoScale", parameters, has_version=bool(prefix)),
        "delete": _unregister(f"{prefix}unregisterModel", parameters),
    }


def _describe(operation_id: str, parameters: list[Document]) -> Document:
    descriptions = {"type": "array", "items": _ref("ModelDescription")}
    responses = {
        "200": _json_response("The version, or each version for `all`.", descriptions),
        **_errors(404, 500, 503),
    }
    summary = "Describe a model: settings, queue, workers."
    own = [
        _query(
            "customized",
            "boolean",
            "Ask the handler too, through a worker; not for `all`.",
            default=False,
        )
    ]
    return _operation("Management", operation_id, summary, [*parameters, *own], responses)


def _scale(operation_id: str, parameters: list[Document], *, has_version: bool) -> Document:
    own = [
        _query("min_worker", "integer", "Workers at least.", default=1, example=2),
        _query("max_worker", "integer", "Workers at most; by default min_worker."),
        _query("synchronous", "boolean", "Answer when the workers are ready.", default=False),
        *(_query(name, row.values.type, row.changed) for name, row in CHANGEABLE.items()),
        _query(
            "url",
            "string",
            "The archive that takes this one's place, once it is loaded beside it. The parameters of a "
            "registration may stand beside it; what is not named stays as it is.",
        ),
        _query("handler", "string", "With url: another handler than that of the registration."),
        _query("startup_timeout", "integer", "With url: seconds a worker may take to load the model."),
        _query("split_instances", "string", "With url: as in a registration."),
        _query("worker_threads", "integer", "With url: threads of each worker."),
    ]
    if not has_version:
        own.append(_query("model_version", "string", "The version; by default the default one."))
    responses = {
        "200": _json_response(
            "The workers are ready, the settings changed, or another archive serves.", _ref("Status")
        ),
        "202": _json_response("The change has begun.", _ref("Status")),
        "206": _json_response("Fewer workers than asked for so far.", _ref("Status")),
        **_errors(400, 404, 405, 409, 500, 507),
    }
    summary = "Scale a model's workers, change how it is served, or replace its archive."
    return _operation("Management", operation_id, summary, [*parameters, *own], responses)


def _unregister(operation_id: str, parameters: list[Document]) -> Document:
    responses = {
        "200": _json_response("Unregistered.", _ref("Status")),
        **_errors(403, 404, 405, 408, 409, 500),
    }
    summary = "Unregister a model and free its workers."
    return _operation("Management", operation_id, summary, parameters, responses)


def _set_default(parameters: list[Document]) -> Document:
    responses = {"200": _json_response("The default version was changed.", _ref("Status")), **_errors(404)}
    summary = "Make a version the default."
    return _operation("Management", "setDefault", summary, parameters, responses)


def _description(operation_id: str, summary: str) -> Document:
    responses = {"200": _json_response("An OpenAPI document.", {"type": "object"})}
    return _operation("Description", operation_id, summary, [], responses)


# Pieces


def _by_any_method(method: str, operation: Document, *more: str) -> Document:
    """The item of a path where the method does not count, and of which people are shown one."""
    others = [other for other in (*_METHODS, *more) if other != method]
    shown = {**operation, "description": "Any other method does the same."}
    return {method: shown, **{other: _also(other, operation) for other in others}}


def _by_post(operation: Document) -> Document:
    """The item of a path that also describes its model."""
    where = [parameter for parameter in operation["parameters"] if parameter["in"] == "path"]
    return {"post": operation, "options": _own_description(operation["operationId"], where)}


def _also(method: str, operation: Document) -> Document:
    """The same by another method."""
    also = {**operation, "operationId": f"{operation['operationId']}_{method}"}
    if method in _WITHOUT_BODY:
        also.pop("requestBody", None)
    return _unlisted(also)


def _own_description(operation_id: str, parameters: list[Document]) -> Document:
    described = _description(f"{operation_id}_options", "The API of this model.")
    responses = {**described["responses"], **_errors(404)}
    return _unlisted({**described, "parameters": parameters, "responses": responses})


def _unlisted(operation: Document) -> Document:
    return {**operation, UNLISTED: True}


def _operation(
    tag: str,
    operation_id: str,
    summary: str,
    parameters: list[Document],
    responses: Document,
    *,
    body: Document | None = None,
) -> Document:
    operation: Document = {"tags": [tag], "summary": summary, "operationId": operation_id}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = body
    return {**operation, "responses": responses}


def _path_parameter(name: str) -> Document:
    described, example = {
        "model_name": ("The model's name.", "resnet-152"),
        "model_version": ("The version.", "1.0"),
        "workflow_name": ("The workflow's name.", "my-workflow"),
        "url_path": ("What follows; it may have several segments.", "details"),
    }[name]
    parameter = {"in": "path", "required": True, "name": name, "description": described}
    return {**parameter, "schema": {"type": "string"}, "example": example}


def _query(name: str, type_: str, description: str, *, example: Any = None, **schema: Any) -> Document:
    parameter = {"in": "query", "name": name, "description": description, "schema": {"type": type_, **schema}}
    return parameter if example is None else {**parameter, "example": example}


def _json_body(description: str, schema: Document, *, example: Document, required: bool = True) -> Document:
    content = {_JSON: {"schema": schema, "example": example}}
    return {"description": description, "required": required, "content": content}


def _json_response(description: str, schema: Document) -> Document:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _errors(*statuses: int) -> Document:
    return {str(status): _json_response(_ERRORS[status], _ref("Error")) for status in statuses}


def _answer_headers() -> Document:
    return {
        name: {"description": description, "schema": schema}
        for name, (description, schema) in _ANSWER_HEADERS.items()
    }


def _ref(schema: str) -> Document:
    return {"$ref": f"#/components/schemas/{schema}"}


def _segment(name: str) -> str:
    """``name`` as one segment of a path; braces would be a template."""
    return quote(name, safe="")


# Schemas


def _schemas() -> Document:
    text = {"type": "string"}
    return {
        "Error": _object(
            {
                "code": {"type": "integer", "description": "The HTTP status."},
                "type": {"type": "string", "description": "The kind of error."},
                "message": text,
                "error": {"type": "string", "description": "The message again, on V1 and V2 routes."},
                "request_id": {
                    "type": "string",
                    "description": "With `expose_errors`, where a handler failed.",
                },
            },
            description="What went wrong. V2 routes may send `error` alone.",
        ),
        "Status": _object({"status": text, "warnings": _warnings()}, required=["status"]),
        "ModelList": _model_list(),
        "ModelDescription": _model_description(),
        "RegisterRequest": _register_request(),
        **_v1_schemas(),
        **_v2_schemas(),
    }


def _object(properties: Document, **more: Any) -> Document:
    return {"type": "object", "properties": properties, **more}


def _model_list() -> Document:
    text = {"type": "string"}
    entry = _object({"modelName": text, "modelUrl": text}, required=["modelName", "modelUrl"])
    token = {"type": "string", "description": "Where the next page begins; absent on the last."}
    return _object({"nextPageToken": token, "models": {"type": "array", "items": entry}}, required=["models"])


def _register_request() -> Document:
    properties = {}
    for name, spec in _register_parameters().items():
        schema = {key: value for key, value in spec.items() if key != "type_"}
        properties[name] = {"type": spec["type_"], **schema}
    return _object(properties, required=["url"])


def _model_description() -> Document:
    texts = ("modelName", "modelVersion", "modelUrl", "runtime", "parallelType", "deviceType")
    numbers = (
        *("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout"),
        *("maxRetryTimeoutInSec", "clientTimeoutInMills", "parallelLevel", "sequenceMaxIdleMSec"),
        *("sequenceTimeoutMSec", "maxNumSequence", "maxSequenceJobQueueSize"),
        *(row.described for row in OPTIONS.values() if row.described and "." not in row.described),
    )
    flags = ("continuousBatching", "useJobTicket", "useVenv", "stateful", "loadedAtStartup")
    queue = _object({"remainingCapacity": {"type": "integer"}, "pendingRequests": {"type": "integer"}})
    return _object(
        {
            **{name: {"type": "string"} for name in texts},
            **{name: {"type": "integer"} for name in numbers},
            **{name: {"type": "boolean"} for name in flags},
            "deviceIds": {"type": "array", "items": {"type": "integer"}},
            "workers": {"type": "array", "items": _worker()},
            "jobQueueStatus": queue,
            "status": {
                "type": "string",
                "enum": ["FAILED"],
                "description": "Of a version not restored only.",
            },
            "failure": {"type": "string", "description": "Why a version could not be restored."},
            "sequences": _object({"living": {"type": "integer"}, "waiting": {"type": "integer"}}),
            "batching": _effective_batching(),
            "autoscaling": _autoscaling(),
            "replacement": _replacement(),
            "warnings": _warnings(),
            "customizedMetadata": {
                "type": "object",
                "description": "What the handler says of itself; with `customized=true` only.",
                "additionalProperties": True,
            },
        }
    )


def _warnings() -> Document:
    description = "What whoever made the archive should know; there where there is something."
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _autoscaling() -> Document:
    text, number, workers = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
    time = {"type": "string", "format": "date-time"}
    change = _object({"time": time, "from": workers, "to": workers, "reason": text})
    wait = {"type": "integer", "description": "What a request waits; absent where it would be refused."}
    return _object(
        {
            **{name: {"type": "integer"} for name in ("targetWait", "upPause", "downPause")},
            "source": {"type": "string", "description": "Where the setting comes from."},
            "wish": {**workers, "description": "How many workers the load asks for."},
            "reason": text,
            "queueWait": wait,
            "busy": {**number, "description": "How many workers are busy, on average."},
            "lastChange": change,
        },
        description="How the number of workers follows the load; times in milliseconds.",
    )


def _replacement() -> Document:
    text = {"type": "string"}
    return _object(
        {
            "modelUrl": text,
            "modelVersion": text,
            "status": {"type": "string", "enum": ["LOADING", "FAILED"]},
            "failure": {"type": "string", "description": "Why it could not take the place."},
            "since": {"type": "string", "format": "date-time"},
        },
        description="What is to take this version's place, or could not; absent without any.",
    )


def _effective_batching() -> Document:
    source = {"type": "string", "description": "Where the value comes from."}
    setting = _object({"value": {}, "source": source})
    description = "The effective batch settings by name, each with its source."
    return {"type": "object", "description": description, "additionalProperties": setting}


def _worker() -> Document:
    return _object(
        {
            "id": {"type": "string"},
            "startTime": {"type": "string", "format": "date-time"},
            "status": {"type": "string", "enum": ["LOADING", "READY", "UNLOADING", "FAILED"]},
            "memoryUsage": {"type": "integer", "format": "int64", "description": "Resident bytes."},
            "pid": {"type": "integer"},
            "gpu": {"type": "boolean"},
            "gpuUsage": {"type": "string"},
            "failure": {"type": "string", "description": "Why it failed, while it does."},
        }
    )


def _v1_schemas() -> Document:
    anything_list = {"type": "array", "items": {}}
    return {
        "V1Request": _object(
            {
                "instances": anything_list,
                "inputs": {**anything_list, "description": "Another name of instances."},
            },
            additionalProperties=True,
        ),
        "V1Response": _object(
            {
                "message": {"type": "string"},
                "batchId": {"type": "string", "format": "uuid"},
                "predictions": anything_list,
                "explanations": anything_list,
            },
            description="batchId and message are there when the model batches.",
        ),
        "V1Models": _object({"models": {"type": "array", "items": {"type": "string"}}}, required=["models"]),
        "V1Ready": _object(
            {"name": {"type": "string"}, "ready": {"type": "boolean"}}, required=["name", "ready"]
        ),
    }


def _v2_schemas() -> Document:
    text: Document = {"type": "string"}
    parameters: Document = {"type": "object", "additionalProperties": True}
    sizes = {"type": "array", "items": {"type": "integer", "format": "int64"}}
    spec = _object({"name": text, "datatype": text, "shape": sizes}, required=["name", "datatype", "shape"])
    specs = {"type": "array", "items": spec, "description": "-1 is any size."}
    texts = {"type": "array", "items": text}
    flag = {"type": "boolean"}
    asked = _object({"name": text, "parameters": parameters}, required=["name"])
    tensors = {"type": "array", "items": _ref("V2Tensor")}
    return {
        "V2Server": _object(
            {"name": text, "version": text, "extensions": texts}, required=["name", "version", "extensions"]
        ),
        "V2Live": _object({"live": flag}, required=["live"]),
        "V2Ready": _object({"ready": flag}, required=["ready"]),
        "V2ModelReady": _object({"name": text, "ready": flag}, required=["name", "ready"]),
        "V2Model": _object(
            {"name": text, "versions": texts, "platform": text, "inputs": specs, "outputs": specs},
            required=["name", "platform", "inputs", "outputs"],
        ),
        "RepositoryModel": _object(
            {
                "name": text,
                "version": text,
                "state": {"type": "string", "enum": ["READY", "LOADING", "UNAVAILABLE"]},
                "reason": text,
            },
            required=["name", "state", "reason"],
        ),
        "V2Tensor": _object(
            {
                "name": text,
                "shape": {"type": "array", "items": {"type": "integer", "format": "int64"}},
                "datatype": text,
                "parameters": parameters,
                "data": {"type": "array", "items": {}, "description": "Row-major, flat or nested."},
            },
            required=["name", "shape", "datatype"],
        ),
        "V2Request": _object(
            {
                "id": text,
                "parameters": parameters,
                "inputs": tensors,
                "outputs": {"type": "array", "items": asked},
            },
            required=["inputs"],
        ),
        "V2Response": _object(
            {
                "model_name": text,
                "model_version": text,
                "id": text,
                "parameters": parameters,
                "outputs": tensors,
            },
            required=["model_name", "outputs"],
        ),
    }
