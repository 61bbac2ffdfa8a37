import re
from itertools import product
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from openapi_spec_validator import validate
from starlette.routing import Route
from tests.documents import describe_listener, listener, operations

from modelserver.ext.openai.codec import NAME, PATHS
from modelserver.ext.workflows.extension import PATHS as WORKFLOW_PATHS
from modelserver.models.options.signature import Signature
from modelserver.surface.api.predictions import describe_model, describe_model_management
from modelserver.surface.http.answers import OPENAI, form_of
from modelserver.surface.inference.routes import parse_route, target_finder

find = target_finder([(NAME, PATHS), ("workflow", WORKFLOW_PATHS)])
ROLES = ("inference", "management", "metrics")
METHODS = {"get", "head", "post", "put", "patch", "delete"}


def test_listener_documents_are_valid():
    """Operations have names of their own; that of all listeners has those of each."""
    operations_of = {}
    for kind in (*ROLES, "all"):
        document = describe_listener(kind)
        validate(document)
        operations_of[kind] = operations(document)
        ids = [operation["operationId"] for operation in operations_of[kind].values()]

        assert document["openapi"] == "3.0.1"
        assert document["info"] == {**document["info"], "title": "modelserver APIs", "version": "1"}
        assert len(ids) == len(set(ids))
    assert operations_of.pop("all").keys() == set().union(*operations_of.values())


def test_metrics_listener_describes_no_models():
    everywhere = {"/", "/api-description", "/openapi.json", "/docs", "/livez", "/readyz"}
    assert set(describe_listener("metrics", "1")["paths"]) == {"/metrics"} | everywhere


def served(app: FastAPI) -> dict[tuple[str, ...], set[str]]:
    """The methods by path, whatever its parameters are called; what takes the rest of a path is left out."""
    methods_by_path: dict[tuple[str, ...], set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route) and ":path}" not in route.path:
            methods = {method.lower() for method in route.methods or ()}
            methods_by_path.setdefault(shape(route.path), set()).update(methods)
    return methods_by_path


def shape(path: str) -> tuple[str, ...]:
    """A path with one name for all parameters; ``{name}:predict`` is one, as far as routes are concerned."""
    path = path.replace("{verb:wfpredict}", "wfpredict")
    return tuple("{}" if "{" in part else part for part in path.split("/"))


@pytest.mark.parametrize(
    ("role", "changed"),
    [
        *((role, {}) for role in ROLES),
        *((role, {"as_torchserve": True}) for role in ROLES),
        ("inference", {"ts_open_inference_protocol": False}),
        ("management", {"tokens": object()}),
        ("management", {"recorder": object()}),
    ],
)
def test_what_is_served_is_described(role, changed):
    """Each routed path and method, and the hot routes; nothing else but what takes the rest of a path."""
    routed = served(listener(role, **changed))
    described: dict[tuple[str, ...], set[str]] = {}
    for path, item in describe_listener(role, **changed)["paths"].items():
        example = path.replace("{", "").replace("}", "")
        hot = set(item) - {"options"} if role == "inference" and find(example.encode()) else set()
        if hot:
            only_post = ":" in path or path.startswith(("/v1/", "/v2/", "/openai/"))
            assert hot == ({"post"} if only_post else METHODS), path
        if "{url_path}" not in path and (others := set(item) - hot):
            described.setdefault(shape(path), set()).update(others)

    assert described == routed


_SEGMENTS = """
    predictions explanations invocations models v1 v2 versions infer explain invoke predict m m:predict
    m:explain 1.0
"""


def test_each_form_of_inference_is_described():
    paths = describe_listener("inference")["paths"]
    forms = [
        re.compile(
            re.sub(r"\\{.*?\\}", "[^/]+", re.escape(path.replace("{url_path}", "\0"))).replace("\0", ".+")
        )
        for path, item in paths.items()
        if "post" in item
    ]
    served = [
        path
        for start in ("", "/v2/models")
        for length in range(1, 5)
        for segments in product(_SEGMENTS.split(), repeat=length)
        if parse_route(path := "/".join((start, *segments))) is not None
    ]

    assert len(served) > 1000
    assert [path for path in served if not any(form.fullmatch(path) for form in forms)] == []


def test_torchserve_has_no_liveness_of_v1():
    """With its defaults ``GET /`` is 405, and no document names it; OPTIONS describes both servers."""
    for kind in ("inference", "all"):
        assert set(describe_listener(kind)["paths"]["/"]) == {"get", "options"}
        assert set(describe_listener(kind, as_torchserve=True)["paths"]["/"]) == {"options"}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "inference",
            {
                "options /": "apiDescription",
                "get /ping": "ping",
                "post /predictions/{model_name}": "predictions",
                "post /predictions/{model_name}/{model_version}": "version_predictions",
                "get /metrics": "metrics",
                "post /models": None,
            },
        ),
        (
            "management",
            {
                "get /models": "listModels",
                "post /models": "registerModel",
                "get /models/{model_name}": "describeModel",
                "put /models/{model_name}": "setAutoScale",
                "delete /models/{model_name}": "unregisterModel",
                "get /models/{model_name}/{model_version}": "version_describeModel",
                "put /models/{model_name}/{model_version}": "version_setAutoScale",
                "delete /models/{model_name}/{model_version}": "version_unregisterModel",
                "put /models/{model_name}/{model_version}/set-default": "setDefault",
                "post /predictions/{model_name}": None,
            },
        ),
    ],
)
def test_operations_are_named_as_torchserve_does(kind, names):
    described = operations(describe_listener(kind, "1"))

    assert {key: described.get(key, {}).get("operationId") for key in names} == names
    assert described["get /api-description"]["deprecated"] is True


def test_workflows_are_described_with_all_responses():
    management, inference = (
        {
            key: sorted(operation["responses"])
            for key, operation in operations(describe_listener(kind, "1")).items()
            if "workflow" in key
        }
        for kind in ("management", "inference")
    )

    assert management == {
        "get /workflows": ["200"],
        "post /workflows": ["200", "400", "404", "405", "409", "500"],
        "get /workflows/{workflow_name}": ["200", "404", "503"],
        "delete /workflows/{workflow_name}": ["200", "404", "405", "409"],
    }
    options = {"options /wfpredict/{workflow_name}": ["404", "405"]}
    assert inference == options | {
        f"{method} /wfpredict/{{workflow_name}}": ["200", "404", "413", "500", "503", "504"]
        for method in METHODS
    }


def test_registration_has_the_same_parameters_in_query_and_body():
    register = operations(describe_listener("management", "1"))["post /models"]
    names = {parameter["name"] for parameter in register["parameters"]}
    schema = describe_listener("management", "1")["components"]["schemas"]["RegisterRequest"]
    policy = next(p for p in register["parameters"] if p["name"] == "batch_policy")

    assert {"url", "model_name", "handler", "batch_size", "max_batch_delay", "initial_workers"} <= names
    assert {"batch_policy", "max_batch_size", "max_latency", "timeout"} <= names
    assert set(schema["properties"]) == names
    assert schema["required"] == ["url"]
    assert register["requestBody"]["required"] is False
    assert policy["schema"]["enum"] == ["adaptive", "greedy", "window"]


def test_errors_share_one_schema():
    """Every 4xx and 5xx answer, except an unhealthy ping, has the error body (reference 4.3), or OpenAI's."""
    for key, operation in operations(describe_listener("all", "1")).items():
        for status, response in operation["responses"].items():
            if status >= "400" and not key.endswith(" /ping"):
                schema = response["content"]["application/json"]["schema"]
                path = key.partition(" ")[2]
                name = "Error" if form_of(path) != OPENAI else "OpenAIError"
                assert schema == {"$ref": f"#/components/schemas/{name}"}, key


@pytest.mark.parametrize(("version", "path"), [(None, "/predictions/m"), ("2.0", "/predictions/m/2.0")])
def test_model_document_has_its_real_paths(version, path):
    """As TorchServe does (reference 6.3)."""
    document = describe_model("m", version)
    validate(document)

    assert document["info"] == {"title": "RESTful API for: m", "version": "1.0.0"}
    v2 = "/v2/models/m/versions/2.0/infer" if version else "/v2/models/m/infer"
    assert list(document["paths"]) == [path, "/v1/models/m:predict", v2]


@pytest.mark.parametrize("name", ["a b", "a/b", "{model}", "ü", "<script>"])
def test_model_names_are_quoted_in_paths(name):
    """Whatever a model is called, its document is valid and its paths have its name as one segment (F12)."""
    document = describe_model(name, "1.0")
    validate(document)

    assert all(part not in path for path in document["paths"] for part in (" ", "{", "<", "a/b"))


@pytest.mark.parametrize("version", [None, "1.0"])
def test_model_management_document_describes_scales_and_unregisters(version):
    document = describe_model_management("m", version)
    validate(document)
    path = "/models/m" if version is None else "/models/m/1.0"

    assert set(document["paths"][path]) == {"get", "put", "delete"}
    assert (f"{path}/set-default" in document["paths"]) == (version is not None)


class Models:
    """A registry of a thousand models, which counts the look-ups."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []

    def get(self, name: str, version: str | None) -> SimpleNamespace:
        self.looked_up.append(name)
        return SimpleNamespace(name=name, version="1.0", signature=Signature(), annotations=None)

    def names(self) -> list[str]:
        return [f"model-{number:03}" for number in range(1000)]


async def test_documents_do_not_grow_with_the_models():
    """Those of listeners name none and look at none, that of a model only at this one."""
    models = Models()
    transport = httpx.ASGITransport(listener("all", registry=models))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        everything = await client.get("/openapi.json")
        of_models = [await client.options(f"/{path}/model-999") for path in ("predictions", "models")]

    assert [answer.status_code for answer in (everything, *of_models)] == [200] * 3
    assert "model-" not in everything.text
    assert max(len(answer.content) for answer in (everything, *of_models)) < 1_000_000
    assert models.looked_up == ["model-999"] * 2
