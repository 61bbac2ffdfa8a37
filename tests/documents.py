"""The OpenAPI documents of listeners, as tests ask for them."""

import functools
import json
from types import SimpleNamespace
from typing import Any

from modelserver.ext.docs.page import add_page
from modelserver.ext.events.routes import Followers, add_events
from modelserver.ext.events.store import EventStore
from modelserver.ext.frontends.routes import add_front_ends
from modelserver.ext.openai.routes import add_models, describe_endpoints
from modelserver.ext.parking.routes import add_parking
from modelserver.ext.recording.routes import add_recording
from modelserver.ext.repository.routes import add_repository
from modelserver.ext.rollout.routes import add_traffic
from modelserver.ext.triton.routes import add_triton
from modelserver.ext.workflows.routes import add_workflow_inference, add_workflow_management
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
    nothing = None
    added: list[Any] = [lambda app, _: add_page(app)]
    if "management" in roles:
        events = EventStore(None, lambda *_: False, lambda: None)
        added.append(lambda app, _: add_events(app, events, Followers(), services))
        added.append(lambda app, _: add_front_ends(app, list))
        added.append(lambda app, _: add_parking(app, nothing, nothing))
        added.append(lambda app, _: add_repository(app, services, everybody=True))
        added.append(lambda app, _: add_traffic(app, nothing, nothing))
        added.append(lambda app, _: add_workflow_management(app, nothing, model_api=True))
        if recorder is not None:
            added.append(lambda app, _: add_recording(app, nothing, recorder))
    if "inference" in roles:
        added.append(lambda app, _: add_repository(app, services, everybody=False))
        added.append(lambda app, _: add_workflow_inference(app, nothing))
        added.append(lambda app, _: add_models(app, nothing))
        added.append(lambda app, _: describe_endpoints(app))
        if values["ts_open_inference_protocol"]:
            added.append(lambda app, _: add_triton(app, services))
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
