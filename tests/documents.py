"""The OpenAPI documents of listeners, as tests ask for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modelserver.ext.recording.routes import add_recording
from modelserver.ext.workflows.routes import add_workflow_inference, add_workflow_management
from modelserver.surface.api.app import build_app
from modelserver.surface.api.openapi import describe_routes

if TYPE_CHECKING:
    from fastapi import FastAPI

_ROLES: dict[str, set[Any]] = {"all": {"inference", "management", "metrics"}}


def listener(kind: str, *, tokens: Any = None, recorder: Any = None, **changed: Any) -> FastAPI:
    """The application of the listener of one role, or of ``all``, with no models; settings may be changed."""
    given = {"enable_model_api": True, "ts_open_inference_protocol": True, "as_torchserve": False, **changed}
    given["management_address"] = SimpleNamespace(is_loopback=True)
    services: Any = SimpleNamespace(
        registry=None,
        metrics=object(),
        settings=SimpleNamespace(**given),
        tokens=tokens,
        shared=None,
    )
    roles = _ROLES.get(kind, {kind})
    nothing: Any = None
    added: list[Any] = []
    if "management" in roles:
        added.append(lambda app, _: add_workflow_management(app, nothing, model_api=True))
        if recorder is not None:
            added.append(lambda app, _: add_recording(app, nothing, recorder))
    if "inference" in roles:
        added.append(lambda app, _: add_workflow_inference(app, nothing))
    return build_app(roles, services, added)


def describe_listener(kind: str, version: str = "1", **changed: Any) -> dict[str, Any]:
    """What that listener says of itself."""
    return describe_routes(listener(kind, **changed).routes, version)


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The operations by id, `method path` for those that share one."""
    return {f"{method} {path}": op for path, item in document["paths"].items() for method, op in item.items()}


def exactly(schema: Any) -> Any:
    """The schema, with objects that have all fields that it names and no others."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: exactly(value) for key, value in schema.items()}
    named = schema.get("properties")
    return (
        {"additionalProperties": False, **kept, "required": list(named)} if isinstance(named, dict) else kept
    )
