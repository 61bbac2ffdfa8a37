"""FastAPI as the application: what is added is served and described."""

import httpx
import pytest
from pydantic import TypeAdapter
from starlette.responses import Response
from tests.documents import describe_listener, operations

from modelserver.surface.api.application import ANY_METHOD, UNLISTED, Application, as_openapi
from modelserver.surface.api.models import PageQuery, Status


def application() -> Application:
    """With one route, which any method gets, and OPTIONS."""
    app = Application()

    async def endpoint(name: str) -> Response:
        return Response(name)

    everything = ("any", "options")
    app.section("Tag")(
        endpoint, "get /a/{name}", "named", "Summary.", Status, (404,), query=PageQuery, others=everything
    )
    return app


def test_methods_without_a_body_have_none():
    for key, described in operations(describe_listener("all", "1")).items():
        assert "requestBody" not in described or key.split()[0] in {"post", "put", "patch"}, key


async def test_parameters_that_fit_no_model_are_served():
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        statuses = {
            method: (await client.request(method, "/a/b?limit=abc")).status_code
            for method in (*ANY_METHOD, "options")
        }

    assert len(statuses) == 7
    assert set(statuses.values()) == {200}


def test_document_shows_one_of_the_methods():
    document = application().openapi()
    item = document["paths"]["/a/{model_name}"]

    assert item.keys() == {*ANY_METHOD, "options"}
    assert [method for method, each in item.items() if UNLISTED not in each] == ["get"]
    assert item["options"]["operationId"] == "named_options"
    assert [list(each["responses"]) for each in item.values()] == [["200", "404"]] * 7
    assert document["components"]["schemas"].keys() == {"Status", "Error"}


def test_parameters_are_those_of_path_and_model():
    """With types, defaults and examples in the words of OpenAPI 3.0, and without pydantic's titles."""
    name, limit, token = application().openapi()["paths"]["/a/{model_name}"]["get"]["parameters"]

    assert (name["name"], name["in"], name["required"]) == ("model_name", "path", True)
    assert (name["schema"], name["example"]) == ({"type": "string"}, "resnet-152")
    assert name["description"] == "The model's name."
    assert (limit["schema"], limit["required"]) == ({"type": "integer", "default": 100}, False)
    assert (token["schema"], token["required"]) == ({"type": "string"}, False)


@pytest.mark.parametrize(
    ("schema", "converted"),
    [
        (TypeAdapter(int | None).json_schema(), {"type": "integer", "nullable": True}),
        ({"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}, {"allOf": [{"$ref": "#/a"}], "nullable": True}),
        (
            {"oneOf": [{"type": "null"}, {"const": 1}, {"const": 2}]},
            {"oneOf": [{"enum": [1]}, {"enum": [2]}], "nullable": True},
        ),
        ({"$ref": "#/a", "description": "b"}, {"allOf": [{"$ref": "#/a"}], "description": "b"}),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "examples": [["b"]]},
            {"type": "array", "items": {}, "example": ["b"]},
        ),
        (
            {"anyOf": [{"type": "integer", "exclusiveMinimum": 3}, {"type": "null"}]},
            {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "nullable": True},
        ),
        ({"type": "null"}, {}),
    ],
    ids=["optional", "optional reference", "choice", "described reference", "tuple", "bound", "null"],
)
def test_json_schemas_become_those_of_openapi(schema, converted):
    """Version 3.0 has no type null, const, tuples or bounds as numbers, and nothing beside a reference."""
    assert as_openapi(schema) == converted
