"""The paths of inference and their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from modelserver.surface.http.answers import KSERVE, OPENAI
from modelserver.surface.http.exchange import Target, read_target

# How many targets of URLs are cached, and the bytes of the longest of these URLs.
_TARGETS_CACHED = 1024
_LONGEST_CACHED = 512

WORKFLOW = "workflow"

# First segments that never name a model in the legacy form `/{model}/predict`.
_NO_MODELS = frozenset({"models", "v1", "v2", "wfpredict", "workflows"})


@dataclass(frozen=True, slots=True)
class Route:
    """The meaning of a path. ``protocol`` is ``v1`` or ``v2``, empty for TorchServe's; with
    :data:`WORKFLOW` the ``model`` is a workflow.

    ``query``: its parameters are passed to the handler. ``root``: the model's own path, if that was used.
    """

    model: str
    version: str | None = None
    url_path: str = ""
    explain: bool = False
    protocol: str = ""
    query: bool = False
    root: str = ""

    @property
    def kserve(self) -> bool:
        """Whether errors have the form for KServe's clients."""
        return self.protocol in ("v1", "v2")

    @property
    def form(self) -> str:
        """Whose form errors have, see :func:`modelserver.surface.http.answers.form_of`."""
        return KSERVE if self.kserve else OPENAI if self.protocol == OPENAI else ""

    @property
    def template(self) -> str:
        """The path with placeholders for names; of another protocol, its name before that of the model."""
        if self.protocol == "v1":
            return f"/v1/models/{{name}}:{'explain' if self.explain else 'predict'}"
        if self.protocol == "v2":
            version = "/versions/{version}" if self.version else ""
            return f"/v2/models/{{name}}{version}/{'explain' if self.explain else 'infer'}"
        if self.protocol == WORKFLOW:
            return "/wfpredict/{name}"
        if self.protocol == OPENAI:
            return f"/{self.url_path}"
        if self.query:
            return "/models/{name}/invoke" if self.model else "/invocations"
        return self.root or f"/{'explanations' if self.explain else self.protocol or 'predictions'}/{{name}}"


def parse_route(path: str) -> Route | None:
    """The route of a decoded path, None if it is not for inference (reference 6.1)."""
    segments = path.split("/")[1:]
    while segments and not segments[-1]:
        segments.pop()
    match segments:
        case ["predictions" | "explanations" as verb, model, *rest] if model:
            version = rest[0] if rest else None
            return Route(model, version, "/".join(rest[1:]), explain=verb == "explanations")
        case ["v1", "models", name] if ":" in name:
            model, _, action = name.partition(":")
            if action in ("predict", "explain") and model:
                return Route(model, explain=action == "explain", protocol="v1")
        case ["v2", "models", model, "infer" | "explain" as verb] if model:
            return Route(model, None, explain=verb == "explain", protocol="v2")
        case ["v2", "models", model, "versions", version, "infer" | "explain" as verb] if model and version:
            return Route(model, version, explain=verb == "explain", protocol="v2")
        case ["invocations"]:
            return Route("", query=True)
        case ["models", model, "invoke"] if model:
            return Route(model, query=True)
        case [first, *_] if not first or first in _NO_MODELS:
            return None
        case [model, "predict"]:
            return Route(model, query=True)
        case [model, version, "predict"]:
            return Route(model, version, query=True)
    return None


def target_finder(paths: Iterable[tuple[str, str]] = ()) -> Callable[[bytes], Target | None]:
    """What finds the target of a URL, None if it is not for inference; recent ones are cached.

    ``paths`` are those of further protocols, which come first: the name of the protocol, and an expression
    for the whole decoded path, whose groups are fields of the route.
    """
    added = [(name, re.compile(pattern)) for name, pattern in paths]

    def parse(path: str) -> Route | None:
        for name, pattern in added:
            if (match := pattern.fullmatch(path)) is not None:
                fields: dict[str, Any] = {key: text for key, text in match.groupdict().items() if text}
                return Route(fields.pop("model", ""), **fields, protocol=name)
        return parse_route(path)

    def read(url: bytes) -> Target | None:
        target = read_target(url)
        route = None if target is None else parse(target.path)
        return None if target is None or route is None else replace(target, route=route)

    cached = lru_cache(_TARGETS_CACHED)(read)

    def find(url: bytes) -> Target | None:
        return cached(url) if len(url) <= _LONGEST_CACHED else read(url)

    return find
