"""The API of workflows: register, list, describe, unregister (reference 19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response
from typing_extensions import Required, TypedDict

from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.ext.workflows.errors import WorkflowNotFound
from modelserver.models.version import SavedWorkflow
from modelserver.surface.api.application import Application, JsonBody
from modelserver.surface.api.models import PageQuery, Status
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from modelserver.ext.workflows.workflow import Workflow
    from modelserver.ext.workflows.workflows import Workflows


class WorkflowRequest(BaseModel):
    """A registration."""

    url: Annotated[str, Field(description="Archive in the workflow store, or a URL.")]
    workflow_name: Annotated[str, Field(None, description="The workflow's name; by default the archive's.")]
    response_timeout: Annotated[int, Field(None, description="Seconds that each node may take for a batch.")]
    startup_timeout: Annotated[
        int, Field(None, description="Seconds that each node's worker may take to load.")
    ]


class WorkflowListEntry(TypedDict):
    """A workflow and its archive."""

    workflowName: str
    workflowUrl: str


class WorkflowList(TypedDict, total=False):
    """A page of the registered workflows."""

    nextPageToken: Annotated[str, Field(description="Where the next page begins; absent on the last.")]
    workflows: Required[list[WorkflowListEntry]]


class WorkflowNode(TypedDict, total=False):
    """A node."""

    name: Required[str]
    model: Required[Annotated[str, Field(description="The model that serves it.")]]
    url: Annotated[str, Field(description="Of the model's archive; absent for a function.")]
    retryAttempts: Required[Annotated[int, Field(description="How often a failed attempt is repeated.")]]
    timeoutMs: Required[Annotated[int, Field(description="Milliseconds that an attempt may take.")]]


class WorkflowDescription(TypedDict):
    """A workflow: options, graph, nodes."""

    workflowName: str
    workflowUrl: str
    minWorkers: Annotated[int, Field(description="Like the next three, for nodes that do not say otherwise.")]
    maxWorkers: int
    batchSize: int
    maxBatchDelay: Annotated[int, Field(description="Milliseconds.")]
    workflowDag: Annotated[str, Field(description="Each node with those after it.")]
    nodes: list[WorkflowNode]


# `synchronous` has no effect: workers are always awaited, as in TorchServe.
_KNOWN = (*WorkflowRequest.model_fields, "synchronous")
# TorchServe's values for a node without a batch size or delay.
_BATCH_SIZE, _BATCH_DELAY = 1, 50


class _AnyCase(StringConvertor):
    """``wfpredict`` in any case."""

    regex = "(?i:wfpredict)"


register_url_convertor("wfpredict", _AnyCase())


def add_routes(app: Application, services: Services, workflows: Workflows | None, role: str) -> None:
    """Adds those of the listener with this role; ``workflows`` is None where they are turned off."""
    if role == "management":
        add_management(app, workflows, model_api=services.settings.enable_model_api)
    else:
        add_inference(app, workflows)


def add_management(app: Application, workflows: Workflows | None, *, model_api: bool) -> None:
    """The routes of the management listener.

    ``model_api``: models may be registered and unregistered.
    """
    api = WorkflowApi(workflows, model_api=model_api)
    add, unknown = app.section("Workflows"), {404: "No such workflow."}
    text = "Register a workflow and its models. The url comes from the query or from a JSON body."
    errors, done = (400, 404, 405, 409, 500), "Registered, with all workers ready."
    query, body = WorkflowRequest, JsonBody.instead_of_query(WorkflowRequest, {"url": "my-workflow.war"})
    route, name = "post /workflows", "registerWorkflow"
    add(api.register, route, name, text, Status, errors, done, query=query, body=body)
    text = "List the registered workflows."
    add(api.list_all, "get /workflows", "listWorkflows", text, WorkflowList, query=PageQuery)
    path, listed = "/workflows/{workflow}", list[WorkflowDescription]
    text = "Describe a workflow: options, graph, nodes."
    add(api.describe, f"get {path}", "describeWorkflow", text, listed, (503,), responses=unknown)
    text = "Unregister a workflow and its models."
    add(api.unregister, f"delete {path}", "unregisterWorkflow", text, Status, (405, 409), responses=unknown)
    app.add_api_route(f"{path}/{{rest:path}}", api.describe, methods=["get"])
    app.add_api_route(f"{path}/{{rest:path}}", api.unregister, methods=["delete"])


def add_inference(app: Application, workflows: Workflows | None) -> None:
    """Describes the route of the inference listener, of which the application only gets OPTIONS; requests of
    other methods are served before it.
    """

    async def refuse(request: Request) -> Response:
        name = request.path_params["workflow"]
        if workflows is None:
            raise WorkflowNotFound.named(name)
        workflows.get(name)
        raise MethodNotAllowed("DELETE, GET, HEAD, PATCH, POST, PUT")

    path = "/{verb:wfpredict}/{workflow}"
    body = {
        "description": "What the first node is given.",
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    }
    app.describe(
        "Workflows",
        f"post {path}",
        "wfpredict",
        "Ask a workflow.",
        Any,
        (404, 413, 500, 503, 504),
        "The last node's answer; of several, an object of them by name.",
        others=("any",),
        more={"requestBody": body},
    )
    app.section("Workflows")(
        refuse,
        f"options {path}",
        "wfpredict_options",
        "Refused: a workflow has no description of its own.",
        None,
        (405,),
        "No such workflow.",
        status=404,
        unlisted=True,
    )
    app.add_api_route(f"{path}/{{rest:path}}", refuse, methods=["OPTIONS"])


class WorkflowApi:
    """One method per route. Registering and unregistering need the model API, as for models."""

    def __init__(self, workflows: Workflows | None, *, model_api: bool) -> None:
        self._workflows = workflows
        self._model_api = model_api

    async def register(self, request: Request) -> Response:
        if self._workflows is None:
            raise BadRequest("Registering new workflows is disabled.")
        self._check_model_api()
        parameters = await Parameters.of_registration(request)
        parameters.warn_of_unknown(_KNOWN)
        url = parameters.text("url")
        if url is None:
            raise BadRequest("Parameter url is required.")
        timeouts = parameters.integer("response_timeout"), parameters.integer("startup_timeout")
        workflow = await self._workflows.register(
            SavedWorkflow(url, *timeouts), parameters.text("workflow_name")
        )
        text = f"Workflow {workflow.name} has been registered and scaled successfully."
        warnings = [*parameters.warnings, *workflow.specification.warnings]
        return Response(pretty({"status": text, "warnings": warnings or None}), media_type=JSON)

    async def list_all(self, request: Request) -> Response:
        urls = {} if self._workflows is None else self._workflows.urls()
        return Parameters.of_query(request).page("workflow", urls)

    async def describe(self, request: Request) -> Response:
        workflow = self._named(request).get(request.path_params["workflow"])
        return Response(pretty([describe_workflow(workflow)]), media_type=JSON)

    async def unregister(self, request: Request) -> Response:
        workflows, name = self._named(request), request.path_params["workflow"]
        self._check_model_api()
        await workflows.unregister(name)
        return Response(pretty(Status(status=f'Workflow "{name}" unregistered')), media_type=JSON)

    def _named(self, request: Request) -> Workflows:
        if self._workflows is None:
            raise WorkflowNotFound.named(request.path_params["workflow"])
        return self._workflows

    def _check_model_api(self) -> None:
        if not self._model_api:
            raise MethodNotAllowed


def describe_workflow(workflow: Workflow) -> dict[str, Any]:
    """The fields of TorchServe, whose numbers are those that nodes may override, and ours: the nodes."""
    common = workflow.specification.common
    return {
        "workflowName": workflow.name,
        "workflowUrl": workflow.url,
        "minWorkers": common.workers(workflow.load),
        "maxWorkers": common.max_workers,
        "batchSize": common.batch_size or _BATCH_SIZE,
        "maxBatchDelay": _BATCH_DELAY if common.max_batch_delay is None else common.max_batch_delay,
        "workflowDag": workflow.specification.dag,
        "nodes": [
            {
                "name": name,
                "model": workflow.model_name(name),
                "url": node.url or None,
                "retryAttempts": node.options.retry_attempts,
                "timeoutMs": node.options.timeout_ms,
            }
            for name, node in workflow.specification.nodes.items()
        ],
    }
