"""The API of workflows on a server that has none (reference 19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response

from modelserver.api.workflows import add_workflow_inference, add_workflow_management
from modelserver.errors import ModelServerError
from modelserver.http.answers import error_body

if TYPE_CHECKING:
    from starlette.requests import Request


async def ask(method: str, path: str) -> httpx.Response:
    """The answer of an application with both sets of routes."""
    app = FastAPI(openapi_url=None)
    add_workflow_management(app)
    add_workflow_inference(app)

    async def show(_request: Request, error: Exception) -> Any:
        status, body = error_body(cast("ModelServerError", error))
        return Response(body, status)

    app.add_exception_handler(ModelServerError, show)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path)


@pytest.mark.parametrize("query", ["", "?url=w.war", "?url=w.war&workflow_name=w"])
async def test_registering_is_disabled(query: str) -> None:
    """POST is 400 whatever the parameters, as at TorchServe's archived head."""
    answer = await ask("POST", f"/workflows{query}")

    assert answer.status_code == 400
    assert answer.json() == {
        "code": 400,
        "type": "BadRequestException",
        "message": "Registering new workflows is disabled.",
    }


@pytest.mark.parametrize("query", ["", "?limit=1&next_page_token=3"])
async def test_the_list_is_empty(query: str) -> None:
    """There are no workflows on any page."""
    answer = await ask("GET", f"/workflows{query}")

    assert (answer.status_code, answer.text) == (200, '{\n  "workflows": []\n}\n')


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/workflows/w"),
        ("DELETE", "/workflows/w"),
        ("GET", "/workflows/w/more"),
        ("POST", "/wfpredict/w"),
        ("GET", "/wfpredict/w"),
        ("OPTIONS", "/WfPredict/w"),
    ],
)
async def test_no_workflow_is_found(method: str, path: str) -> None:
    """Describing, deleting and calling one is 404; ``wfpredict`` may be written in any case."""
    answer = await ask(method, path)

    assert answer.status_code == 404
    assert (answer.json()["type"], answer.json()["message"]) == (
        "WorkflowNotFoundException",
        "Workflow not found: w",
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("PUT", "/workflows", 405), ("POST", "/workflows/w", 405), ("POST", "/wfpredict", 404)],
)
async def test_other_methods_and_routes_of_workflows(method: str, path: str, status: int) -> None:
    """Other methods are not allowed, and ``/wfpredict`` alone is no route."""
    assert (await ask(method, path)).status_code == status
