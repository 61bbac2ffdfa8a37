import base64
from collections.abc import Mapping
from typing import Any

from modelserver.tools.migrate.calls import Response


def answer_of(recorded: Mapping[str, Any]) -> Response:
    """The reverse of :meth:`Answer.to_json`."""
    body = recorded["body"]
    if body is not None:
        body = body.encode() if isinstance(body, str) else base64.b64decode(body["base64"])
    return Response(recorded["status"], recorded["reason"], recorded["headers"], body)
