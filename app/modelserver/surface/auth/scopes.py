"""What a token allows, and which one a request needs (reference 16.2)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum


class Scope(Enum):
    """What a token allows; the values are the names in ``key_file.json``."""

    MANAGEMENT = "management"
    INFERENCE = "inference"
    API = "API"

    @property
    def variable(self) -> str:
        """The environment variable with the operator's tokens, separated by commas or spaces."""
        return f"MODELSERVER_{self.name}_TOKEN"


TOKEN_PATH = "/token"  # noqa: S105 - a route
# Contains the tokens that the server generated.
KEY_FILE = "key_file.json"
_CONSOLE = "/console"

# Probes of orchestrators, which have no token, and descriptions, which reveal nothing about the models.
_PROBES = frozenset({"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})
_OPEN = _PROBES | {"/api-description", "/openapi.json", "/docs"}
_INFERENCE_FIRST = frozenset(
    {"predictions", "explanations", "invocations", "metrics", "openai", "ping", "v1", "v2"}
)
_MANAGEMENT_FIRST = frozenset({"models", "workflows"})


def needed_scope(roles: AbstractSet[str], method: str, path: str, *, ping_token: bool) -> Scope | None:
    """The token that a request needs, None if none.

    Probes, descriptions, the console's page, and metrics at their own address need none, ``/ping`` only with
    ``ping_token``.
    Where inference and management share an address, the path decides, and unknown paths need the management
    token. ``/v2/repository``, and Triton's settings of logs and traces, need it everywhere. Unlike in
    TorchServe, ``/token`` counts as the path only, not anywhere in the request.

    Args:
        roles: of the listener: ``inference``, ``management``, ``metrics``.
        path: decoded.
    """
    path = path.rstrip("/") or "/"
    if _is_open(roles, method, path, ping_token=ping_token):
        return None
    # KServe's routes to load and unload models, and Triton's for settings of the whole server, which the
    # inference address has too.
    sets_traces = path.startswith("/v2/") and path.endswith("/trace/setting")
    if sets_traces or f"{path}/".startswith(("/v2/repository/", "/v2/logging/")):
        return Scope.MANAGEMENT
    if "management" not in roles:
        return Scope.INFERENCE
    if path == TOKEN_PATH:
        return Scope.API
    return Scope.INFERENCE if "inference" in roles and _is_inference(path) else Scope.MANAGEMENT


def strictest_scope(roles: AbstractSet[str]) -> Scope | None:
    """The token that a request with an unreadable path needs."""
    if "management" in roles:
        return Scope.MANAGEMENT
    return Scope.INFERENCE if "inference" in roles else None


def _is_open(roles: AbstractSet[str], method: str, path: str, *, ping_token: bool) -> bool:
    if roles == {"metrics"} or path in _OPEN:
        return True
    if path == "/":
        return method == "OPTIONS"
    if path == _CONSOLE or path.startswith(f"{_CONSOLE}/static/"):
        # The page itself, which holds no data.
        return "management" in roles and "inference" not in roles
    return path == "/ping" and not ping_token


def _is_inference(path: str) -> bool:
    first, *rest = path.removeprefix("/").split("/")
    if first in _MANAGEMENT_FIRST:
        return first == "models" and len(rest) == 2 and rest[1] == "invoke"
    return (
        first in _INFERENCE_FIRST
        or first.lower() == "wfpredict"
        or (first != "" and rest[-1:] == ["predict"])
    )
