"""Requests and answers that rules are about."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelserver.tools.migrate.calls import Answer, Call
from modelserver.tools.migrate.changes import pretty
from modelserver.tools.migrate.rules import OF_THE_RUN, RULES

if TYPE_CHECKING:
    from modelserver.tools.migrate.changes import Change


def a_call(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Call:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Call("", "inference", method, path, named, body)


def said(status: int, message: str = "", **more: Any) -> Answer:
    body = {"code": status, "type": "InternalServerException", "message": message, **more}
    return Answer(status, "", {}, pretty(body))


def good(value: object) -> Answer:
    return Answer(200, "OK", {}, json.dumps(value).encode())


FAILED = said(503, "Prediction failed")
INSTANCES = a_call("/v1/models/m:predict", b'{"instances": [1]}')
HINT = "Prediction failed: TypeError. Hint: a handler that reads the body itself needs split_instances=false"
NO_ROUTE = said(404, "Requested resource is not found, please refer to API document.")


def change_of(name: str) -> Change:
    """What the rule of this name does."""
    return next(rule.change for rule in (*RULES, *OF_THE_RUN) if rule.name == name)
