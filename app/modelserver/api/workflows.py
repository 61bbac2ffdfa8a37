"""The API of workflows, which cannot be registered (reference 19).

TorchServe's last source disabled their registration, its 0.12.0 wheel still accepts it. Here it is disabled:
clients that list, describe or call workflows get the answers of a server without any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.api.descriptions import add, answers, array, by_any_method, errors, operation, record
from modelserver.errors import BadRequest, ModelServerError
from modelserver.http.answers import JSON, pretty

if TYPE_CHECKING:
    from fastapi import FastAPI


class WorkflowNotFound(ModelServerError):
    """No such workflow: there are none."""

    status = 404
    type = "WorkflowNotFoundException"

    @classmethod
    def named(cls, name: str) -> WorkflowNotFound:
        return cls(f"Workflow not found: {name}")


class _AnyCase(StringConvertor):
    """``wfpredict`` in any case."""

    regex = "(?i:wfpredict)"


register_url_convertor("wfpredict", _AnyCase())


def add_workflow_management(app: FastAPI) -> None:
    """The routes of the management listener."""
    listed = record({"workflows": array({"type": "object"})}, "workflows")
    list_all = "List the workflows: there are none.", answers("An empty list.", listed)
    register = "Register a workflow: always refused.", errors(400)
    add(app, "/workflows", _register, post=operation("Workflows", "registerWorkflow", *register))
    add(app, "/workflows", _list, get=operation("Workflows", "listWorkflows", *list_all))
    unknown = {
        "get": operation(
            "Workflows", "describeWorkflow", "Describe a workflow; there are none.", errors(404)
        ),
        "delete": operation(
            "Workflows", "unregisterWorkflow", "Unregister a workflow; there are none.", errors(404)
        ),
    }
    add(app, "/workflows/{workflow}", _unknown, **unknown)
    app.add_api_route("/workflows/{workflow}/{rest:path}", _unknown, methods=list(unknown))


def add_workflow_inference(app: FastAPI) -> None:
    """The route of the inference listener; it needs a workflow's name."""
    summary = "Call a workflow; there are none, call the models instead."
    described = operation("Workflows", "wfpredict", summary, errors(404))
    item = by_any_method("post", described, "options")
    add(app, "/{verb:wfpredict}/{workflow}", _unknown, **item)
    app.add_api_route("/{verb:wfpredict}/{workflow}/{rest:path}", _unknown, methods=list(item))


async def _register() -> Response:
    """POST /workflows"""
    raise BadRequest("Registering new workflows is disabled.")


async def _list() -> Response:
    """GET /workflows"""
    return Response(pretty({"workflows": []}), media_type=JSON)


async def _unknown(request: Request) -> Response:
    """GET or DELETE /workflows/{name}, and any method of /wfpredict/{name}"""
    raise WorkflowNotFound.named(request.path_params["workflow"])
