"""Requests to ASGI applications in workers: their rows come with what ASGI calls a scope."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from modelserver.engine.wire.messages import Load
from modelserver.errors import BadRequest
from modelserver.surface.http.exchange import Exchange, Target
from modelserver.surface.inference.routes import Route

# The application gets the body in bytes, whatever its type.
OCTETS: Final = "application/octet-stream"
# The built-in handlers that are none.
_PLAIN: Final = re.compile(
    "(base|densenet)_handler|(text|image)_classifier|object_detector|image_segmenter|tabular"
)
_WEBSOCKET: Final = b"sec-websocket-key"


def scope_of(exchange: Exchange) -> bytes:
    """The scope as JSON, with texts instead of bytes. Raises BadRequest for an offer of a WebSocket."""
    target, headers = exchange.target, [(name.lower(), value) for name, value in exchange.headers]
    if any(name == _WEBSOCKET for name, _ in headers):
        raise BadRequest("WebSockets are not supported: use HTTP, and for streams server-sent events.")
    root = _root_path(target.path, target.route)
    return msgspec.json.encode(
        {
            "method": exchange.method.decode("latin-1"),
            "http_version": exchange.http_version,
            "path": f"{root}/" if target.path == root else target.path,
            "root_path": root,
            "raw_path": target.text.partition("?")[0],
            "query_string": target.query.decode("latin-1"),
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
        }
    )


def _root_path(path: str, route: Route) -> str:
    """The part of the path before that of the application."""
    if route.query or route.root:
        return route.root or path
    if not names_model(path):
        return path.partition("/v1/")[0]
    depth = 3 if route.version is None else 4
    return "/".join(path.split("/", depth)[:depth])


def names_model(path: str) -> bool:
    """Whether the model and its version are in the path; OpenAI's own paths leave them to the body."""
    return not path.startswith(("/v1/", "/openai/v1/"))


def may_take_scopes(load: Load) -> bool:
    """Whether a handler that was never loaded may be an application: a script without the name of one is
    none, and of the built-in handlers only vLLM's.
    """
    module, _, attribute = load.handler.partition(":")
    try:
        source = Path(load.model_dir, module).with_suffix(".py").read_bytes()
    except OSError:
        return _PLAIN.fullmatch(module) is None
    return bool(attribute) or re.search(rb"\bapp\b|import\s*\*", source) is not None


def without_version(target: Target) -> Target:
    """The target if what looks like a version is the first part of an application's path."""
    route: Route = target.route
    rest = f"{route.version}/{route.url_path}" if route.url_path else str(route.version)
    return replace(target, route=replace(route, version=None, url_path=rest))
