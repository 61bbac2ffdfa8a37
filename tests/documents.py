"""The OpenAPI documents of listeners, as tests ask for them."""

import functools
import json
from types import SimpleNamespace
from typing import Any

from modelserver.ext.events.routes import Followers
from modelserver.ext.events.store import EventStore
from modelserver.extension import Host
from modelserver.surface.api.app import build_app
from modelserver.surface.api.application import Application
from modelserver.surface.api.services import Services


def listener(kind: str, *, tokens=None, recorder=None, registry=None, **changed) -> Application:
    """The application of the listener of one role, or of ``all``, with no models but those of ``registry``;
    settings may be changed.
    """
    values = {"enable_model_api": True, "ts_open_inference_protocol": True, "as_torchserve": False, **changed}
    services = Services(registry, object(), SimpleNamespace(**values), tokens, *(None,) * 4)
    roles: set[Any] = {"inference", "management", "metrics"} if kind == "all" else {kind}
    nothing, host = None, SimpleNamespace(added_routes=[])

    def add(role: Any, module: str, *arguments: Any, **named: Any) -> None:
        Host.routes(host, role, f"modelserver.ext.{module}", *arguments, **named)  # type: ignore[arg-type]

    for role in sorted(roles):
        add(role, "docs.page")
    events = EventStore(None, lambda *_: False, lambda: None)
    add("management", "events.routes", events, Followers())
    add("management", "frontends.routes", list)
    add("management", "parking.routes", nothing)
    add("management", "repository.routes", everybody=True)
    add("management", "rollout.routes", nothing)
    add("management", "workflows.routes", nothing, "management")
    if recorder is not None:
        add("management", "recording.routes", recorder)
    add("inference", "repository.routes", everybody=False)
    add("inference", "workflows.routes", nothing, "inference")
    add("inference", "openai.routes")
    if values["ts_open_inference_protocol"]:
        add("inference", "triton.routes")
    added = [routes for role, routes in host.added_routes if role in roles]
    return build_app(roles, services, added)


def describe_listener(kind: str, version: str = "1", **changed) -> dict[str, Any]:
    """What that listener says of itself; it is made once."""
    document: dict[str, Any] = json.loads(_written(kind, version, **changed))
    return document


@functools.cache
def _written(kind: str, version: str, **changed) -> str:
    app = listener(kind, **changed)
    app.version = version
    return json.dumps(app.openapi())


def schema_of(kind: str, name: str):
    """One of the schemas of that listener's document, with those that it refers to in their places."""
    schemas = describe_listener(kind)["components"]["schemas"]

    def resolved(schema):
        if isinstance(schema, list):
            return [resolved(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return resolved(schemas[schema["$ref"].rpartition("/")[2]])
        plain = {key: resolved(value) for key, value in schema.items()}
        (one,) = plain.pop("allOf", [{}])
        return {**one, **plain}

    return resolved(schemas[name])


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The operations by id, `method path` for those that share one."""
    return {f"{method} {path}": op for path, item in document["paths"].items() for method, op in item.items()}


def exactly(schema):
    """The schema, with objects that have all fields that it names and no others."""
    if not isinstance(schema, dict):
        return schema
    rest = {key: exactly(value) for key, value in schema.items()}
    named = schema.get("properties")
    return (
        {"additionalProperties": False, **rest, "required": list(named)} if isinstance(named, dict) else rest
    )
