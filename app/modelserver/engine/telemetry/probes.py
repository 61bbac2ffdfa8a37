"""Which requests are health checks."""

from __future__ import annotations

import re
from typing import Final

_REST: Final = re.compile(
    r"/ping|/livez|/readyz|/v2/health/(?:live|ready)|(?P<v1>/v1/models/[^/:]+)"
    r"|/v2/models/[^/]+(?P<version>/versions/[^/]+)?/ready"
)
_GRPC: Final = re.compile(
    r"grpc\.health\.v1\.Health/(?:Check|Watch)|[\w.]+\.GRPCInferenceService/(?:Server(?:Live|Ready)|ModelReady)"
    r"|[\w.]+\.InferenceAPIsService/Ping"
)


def probe_path(target: str) -> str:
    """The path of a health check, without the names in it; empty for other requests.

    ``target`` is path and query, or service and method of gRPC.
    """
    path = target.partition("?")[0].rstrip("/")
    if not path.startswith("/"):
        return path if _GRPC.fullmatch(path) else ""
    match = _REST.fullmatch(path)
    if match is None:
        return ""
    if match["v1"]:
        return "/v1/models/{name}"
    if path.startswith("/v2/models/"):
        return f"/v2/models/{{name}}{'/versions/{version}' if match['version'] else ''}/ready"
    return path
