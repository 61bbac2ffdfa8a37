"""The pieces that descriptions of routes are made of."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute
from tests.documents import describe_listener, operations

from modelserver.surface.api.descriptions import (
    TEXT,
    UNLISTED,
    add,
    answers,
    by_any_method,
    operation,
    record,
)


def test_methods_without_a_body_have_none() -> None:
    """GET, HEAD and DELETE predict too, without a body."""
    for key, described in operations(describe_listener("all", "1")).items():
        assert "requestBody" not in described or key.split()[0] in {"post", "put", "patch"}, key


def test_a_route_has_the_methods_that_it_describes() -> None:
    """What is not described is not served."""
    app = FastAPI()
    described = operation("Tag", "name", "Summary.", answers("Done.", TEXT))
    add(app, "/a", lambda: None, **by_any_method("get", described, "options"))
    (route,) = (route for route in app.routes if isinstance(route, APIRoute))

    assert route.methods == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    shown = [method for method, each in (route.openapi_extra or {}).items() if UNLISTED not in each]
    assert shown == ["get"]


def test_a_record_names_what_it_always_has() -> None:
    """OpenAPI allows no empty list of these."""
    assert record({"a": TEXT, "b": TEXT}, "a")["required"] == ["a"]
    assert "required" not in record({"a": TEXT})
