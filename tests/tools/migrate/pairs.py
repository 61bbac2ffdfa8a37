import json
from typing import Any

from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.changes import Change, pretty
from modelserver.tools.migrate.rules import OF_THE_RUN, RULES


def a_call(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Probe:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Probe("", "inference", method, path, named, body)


def failure(status: int, message: str = "", **more: Any) -> Response:
    body = {"code": status, "type": "InternalServerException", "message": message, **more}
    return Response(status, "", {}, pretty(body))


def good(value: object) -> Response:
    return Response(200, "OK", {}, json.dumps(value).encode())


FAILED = failure(503, "Prediction failed")
INSTANCES = a_call("/v1/models/m:predict", b'{"instances": [1]}')
HINT = "Prediction failed: TypeError. Hint: a handler that reads the body itself needs split_instances=false"
NO_ROUTE = failure(404, "Requested resource is not found, please refer to API document.")


def change_of(name: str) -> Change:
    return next(rule.change for rule in (*RULES, *OF_THE_RUN) if rule.name == name)
