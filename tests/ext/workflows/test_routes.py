"""The API of workflows (reference 19), with workflows that the test provides."""

from types import SimpleNamespace
from typing import Any, cast

import httpx
import jsonschema
import pytest
from starlette.responses import Response
from tests.documents import exactly, schema_of

from modelserver.errors import ModelServerError
from modelserver.ext.workflows.errors import WorkflowNotFound
from modelserver.ext.workflows.routes import add_inference, add_management
from modelserver.ext.workflows.specification import NodeOptions, NodeSpec
from modelserver.models.version import SavedWorkflow
from modelserver.surface.api.application import Application
from modelserver.surface.http.answers import error_body


class Workflows:
    def __init__(self):
        self.sent: list[Any] = []

    def get(self, name):
        if name not in self.urls():
            raise WorkflowNotFound.named(name)
        nodes = {
            "m": NodeSpec("m", NodeOptions(retry_attempts=2), "m.mar"),
            "f": NodeSpec("f", NodeOptions(timeout_ms=5)),
        }
        specification = SimpleNamespace(
            common=NodeOptions(batch_size=3), dag="{m=[f]}", nodes=nodes, warnings=("a note",)
        )
        return SimpleNamespace(
            name=name,
            url="w.war",
            load="at-start",
            specification=specification,
            model_name=lambda node: f"{name}__{node}",
        )

    def urls(self):
        return {"w": "w.war", "a": "a.war"}

    async def register(self, request, name):
        self.sent.append((request, name))
        return self.get(name or "w")

    async def unregister(self, name):
        self.sent.append(self.get(name).name)


async def ask(method, path, workflows=None, *, model_api=True, **more):
    app = Application()
    add_management(app, workflows, model_api=model_api)
    add_inference(app, workflows)

    async def show(_request, error):
        status, body = error_body(cast("ModelServerError", error))
        return Response(body, status)

    app.add_exception_handler(ModelServerError, show)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **more)


async def test_workflow_is_registered():
    """The parameters come from the query or a JSON body; unknown ones are warned of."""
    workflows = Workflows()
    answer = await ask("POST", "/workflows?url=w.war&response_timeout=5&synchronous=false&urk=1", workflows)

    assert answer.json() == {
        "status": "Workflow w has been registered and scaled successfully.",
        "warnings": ["The parameter 'urk' is unknown and is ignored; did you mean url?", "a note"],
    }
    value = {"url": "a.war", "workflow_name": "a", "startup_timeout": 7}
    await ask("POST", "/workflows", workflows, json=value)
    assert workflows.sent == [(SavedWorkflow("w.war", 5), None), (SavedWorkflow("a.war", None, 7), "a")]
    answer = await ask("POST", "/workflows", workflows)
    assert (answer.status_code, answer.json()["message"]) == (400, "Parameter url is required.")


async def test_workflows_are_listed_in_pages():
    """They are sorted by name; pages are those of models."""
    data = (await ask("GET", "/workflows?limit=1&next_page_token=1", Workflows())).json()
    assert data == {"workflows": [{"workflowName": "w", "workflowUrl": "w.war"}], "nextPageToken": "2"}


async def test_workflow_is_described_and_unregistered():
    workflows = Workflows()
    (described,) = (await ask("GET", "/workflows/w/more", workflows)).json()
    nodes = described.pop("nodes")

    assert described == {
        "workflowName": "w",
        "workflowUrl": "w.war",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 3,
        "maxBatchDelay": 50,
        "workflowDag": "{m=[f]}",
    }
    assert nodes == [
        {"name": "m", "model": "w__m", "url": "m.mar", "retryAttempts": 2, "timeoutMs": 10000},
        {"name": "f", "model": "w__f", "retryAttempts": 1, "timeoutMs": 5},
    ]
    answer = await ask("DELETE", "/workflows/w", workflows)
    assert (answer.json(), workflows.sent) == ({"status": 'Workflow "w" unregistered'}, ["w"])


async def test_all_fields_are_documented():
    described = (await ask("GET", "/workflows/w", Workflows())).json()
    listed = (await ask("GET", "/workflows?limit=1", Workflows())).json()
    function = described[0]["nodes"].pop(1)

    jsonschema.validate(described[0], exactly(schema_of("management", "WorkflowDescription")))
    jsonschema.validate(listed, exactly(schema_of("management", "WorkflowList")))
    assert set(function) == set(described[0]["nodes"][0]) - {"url"}


async def test_model_api_and_workflows_can_be_turned_off():
    """Registering a workflow registers models, so that nobody may who may not register those. Without
    workflows there are none, and none can be registered, as at TorchServe's head.
    """
    for method, path in (("POST", "/workflows?url=w.war"), ("DELETE", "/workflows/w")):
        assert (await ask(method, path, Workflows(), model_api=False)).status_code == 405
    assert (await ask("GET", "/workflows/w", Workflows(), model_api=False)).status_code == 200

    answer = await ask("POST", "/workflows?url=w.war")
    assert (answer.status_code, answer.json()["message"]) == (400, "Registering new workflows is disabled.")
    assert (await ask("GET", "/workflows")).text == '{\n  "workflows": []\n}\n'


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/workflows/nobody"),
        ("DELETE", "/workflows/nobody"),
        ("GET", "/workflows/nobody/more"),
        ("OPTIONS", "/wfpredict/nobody"),
        ("OPTIONS", "/WFpredict/nobody/more"),
    ],
)
@pytest.mark.parametrize("workflows", [None, Workflows()])
async def test_missing_workflow_is_refused(method, path, workflows):
    answer = await ask(method, path, workflows)

    assert (answer.status_code, answer.json()["type"], answer.json()["message"]) == (
        404,
        "WorkflowNotFoundException",
        "Workflow not found: nobody",
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/workflows", 405),
        ("POST", "/workflows/w", 405),
        ("OPTIONS", "/wfpredict/w", 405),
        ("POST", "/wfpredict", 404),
    ],
)
async def test_other_methods_and_routes_are_refused(method, path, status):
    assert (await ask(method, path, Workflows())).status_code == status
