"""Workflows: what is left of their API where none can be registered (reference 19).

TorchServe's archived head disabled their registration, its 0.12.0 wheel still accepts it. Here it is
disabled: clients that list, describe or call workflows get the answers of a server that has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.errors import BadRequest, ModelServerError
from modelserver.http.answers import JSON, pretty

if TYPE_CHECKING:
    from fastapi import FastAPI

_ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


class WorkflowNotFound(ModelServerError):
    """No such workflow: there are none."""

    status = 404
    type = "WorkflowNotFoundException"

    @classmethod
    def named(cls, name: str) -> WorkflowNotFound:
        return cls(f"Workflow not found: {name}")


class _AnyCase(StringConvertor):
    """``wfpredict`` however it is written."""

    regex = "(?i:wfpredict)"


register_url_convertor("wfpredict", _AnyCase())


def add_workflow_management(app: FastAPI) -> None:
    """The routes of the management listener."""
    app.add_api_route("/workflows", _register, methods=["POST"])
    app.add_api_route("/workflows", _list, methods=["GET"])
    for path in ("/workflows/{name}", "/workflows/{name}/{rest:path}"):
        app.add_api_route(path, _unknown, methods=["GET", "DELETE"])


def add_workflow_inference(app: FastAPI) -> None:
    """The route of the inference listener; ``/wfpredict`` alone is none."""
    for path in ("/{verb:wfpredict}/{name}", "/{verb:wfpredict}/{name}/{rest:path}"):
        app.add_api_route(path, _unknown, methods=_ANY_METHOD)


async def _register() -> Response:
    """POST /workflows"""
    raise BadRequest("Registering new workflows is disabled.")


async def _list() -> Response:
    """GET /workflows; ``limit`` and ``next_page_token`` find nothing to cut."""
    return Response(pretty({"workflows": []}), media_type=JSON)


async def _unknown(request: Request) -> Response:
    """GET or DELETE /workflows/{name}, and any method of /wfpredict/{name}"""
    raise WorkflowNotFound.named(request.path_params["name"])
