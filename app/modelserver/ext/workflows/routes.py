"""The API of workflows: register, list, describe, unregister (reference 19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.errors import BadRequest, MethodNotAllowed, WorkflowNotFound
from modelserver.models.version import SavedWorkflow
from modelserver.surface.api import descriptions as oas
from modelserver.surface.api.management import status
from modelserver.surface.api.pages import one_page, page_parameters, page_schema
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from fastapi import FastAPI

    from modelserver.ext.workflows.workflow import Workflow
    from modelserver.ext.workflows.workflows import Workflows

_PARAMETERS = {
    "url": oas.told(oas.TEXT, "Archive in the workflow store, or a URL."),
    "workflow_name": oas.told(oas.TEXT, "The workflow's name; by default the archive's."),
    "response_timeout": oas.told(oas.WHOLE, "Seconds that each node may take for a batch."),
    "startup_timeout": oas.told(oas.WHOLE, "Seconds that each node's worker may take to load."),
}
# The workers are waited for in any case, as in TorchServe.
_KNOWN = (*_PARAMETERS, "synchronous")
# What TorchServe tells of a node without a batch size or delay.
_BATCH_SIZE, _BATCH_DELAY = 1, 50


class _AnyCase(StringConvertor):
    """``wfpredict`` in any case."""

    regex = "(?i:wfpredict)"


register_url_convertor("wfpredict", _AnyCase())


def add_workflow_management(app: FastAPI, workflows: Workflows | None, *, model_api: bool) -> None:
    """The routes of the management listener.

    ``workflows`` is None where they are turned off. ``model_api``: models may be registered and unregistered.
    """
    api = WorkflowApi(workflows, model_api=model_api)
    oas.add(app, "/workflows", api.register, post=_REGISTER)
    oas.add(app, "/workflows", api.list_all, get=_LIST)
    oas.add(app, "/workflows/{workflow}", api.describe, get=_DESCRIBE)
    oas.add(app, "/workflows/{workflow}", api.unregister, delete=_UNREGISTER)
    more = "/workflows/{workflow}/{rest:path}"
    app.add_api_route(more, api.describe, methods=["get"])
    app.add_api_route(more, api.unregister, methods=["delete"])


def add_workflow_inference(app: FastAPI, workflows: Workflows | None) -> None:
    """Describes the route of the inference listener, of which the application only gets OPTIONS; requests of
    other methods are served before it.
    """

    async def refuse(request: Request) -> Response:
        name = request.path_params["workflow"]
        if workflows is None:
            raise WorkflowNotFound.named(name)
        workflows.get(name)
        raise MethodNotAllowed(", ".join(sorted(method.upper() for method in oas.METHODS)))

    body = {
        "description": "What the first node is given.",
        "required": False,
        "content": {"*/*": {"schema": oas.BINARY}},
    }
    responses = {
        "200": oas.answer("The last node's answer; of several, an object of them by name.", {}),
        **oas.errors(404, 413, 500, 503, 504),
    }
    described = oas.operation("Workflows", "wfpredict", "Ask a workflow.", responses, body=body)
    item = oas.by_any_method("post", described)
    about = "Workflows", "wfpredict_options", "Refused: a workflow has no description of its own."
    item["options"] = {**oas.operation(*about, oas.errors(404, 405)), oas.UNLISTED: True}
    path = "/{verb:wfpredict}/{workflow}"
    app.add_api_route(path, refuse, methods=["OPTIONS"], openapi_extra=item)
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
        return status(200, text, [*parameters.warnings, *workflow.specification.warnings])

    async def list_all(self, request: Request) -> Response:
        urls = {} if self._workflows is None else self._workflows.urls()
        return one_page("workflow", urls, Parameters.of_query(request))

    async def describe(self, request: Request) -> Response:
        workflow = self._named(request).get(request.path_params["workflow"])
        return Response(pretty([describe_workflow(workflow)]), media_type=JSON)

    async def unregister(self, request: Request) -> Response:
        workflows, name = self._named(request), request.path_params["workflow"]
        self._check_model_api()
        await workflows.unregister(name)
        return status(200, f'Workflow "{name}" unregistered')

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
        "minWorkers": common.min_workers,
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


# Descriptions

SCHEMAS: oas.Document = {
    "WorkflowList": page_schema("workflow"),
    "WorkflowRequest": oas.record(_PARAMETERS, "url"),
    "WorkflowDescription": oas.record(
        {
            "workflowName": oas.TEXT,
            "workflowUrl": oas.TEXT,
            "minWorkers": oas.told(oas.WHOLE, "Like the next three, for nodes that do not say otherwise."),
            "maxWorkers": oas.WHOLE,
            "batchSize": oas.WHOLE,
            "maxBatchDelay": oas.told(oas.WHOLE, "Milliseconds."),
            "workflowDag": oas.told(oas.TEXT, "Each node with those after it."),
            "nodes": oas.array(
                oas.record(
                    {
                        "name": oas.TEXT,
                        "model": oas.told(oas.TEXT, "The model that serves it."),
                        "url": oas.told(oas.TEXT, "Of the model's archive; absent for a function."),
                        "retryAttempts": oas.told(oas.WHOLE, "How often a failed attempt is repeated."),
                        "timeoutMs": oas.told(oas.WHOLE, "Milliseconds that an attempt may take."),
                    },
                    *("name", "model", "retryAttempts", "timeoutMs"),
                )
            ),
        },
        *("workflowName", "workflowUrl", "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay"),
        *("workflowDag", "nodes"),
    ),
}
_NOT_THERE = {"404": oas.answer("No such workflow.", oas.ref("Error"))}
_REGISTER = oas.operation(
    "Workflows",
    "registerWorkflow",
    "Register a workflow and its models. The url comes from the query or from a JSON body.",
    oas.answers("Registered, with all workers ready.", oas.STATUS, 400, 404, 405, 409, 500),
    parameters=[
        oas.query(name, schema["type"], schema["description"]) for name, schema in _PARAMETERS.items()
    ],
    body=oas.json_body(
        "The same parameters; with a JSON body the query is not read.",
        oas.ref("WorkflowRequest"),
        example={"url": "my-workflow.war"},
        required=False,
    ),
)
_LIST = oas.operation(
    *("Workflows", "listWorkflows", "List the registered workflows."),
    oas.answers("The workflows, by name.", oas.ref("WorkflowList")),
    parameters=page_parameters("workflow"),
)
_FOUND = oas.answers("The workflow.", oas.array(oas.ref("WorkflowDescription")), 503)
_DESCRIBE = oas.operation(
    *("Workflows", "describeWorkflow", "Describe a workflow: options, graph, nodes."), _FOUND | _NOT_THERE
)
_GONE = oas.answers("Unregistered, with its models.", oas.STATUS, 405, 409)
_UNREGISTER = oas.operation(
    *("Workflows", "unregisterWorkflow", "Unregister a workflow and its models."), _GONE | _NOT_THERE
)
