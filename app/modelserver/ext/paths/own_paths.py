"""Which model answers at which path of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from modelserver.errors import BadRequest, Conflict
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.routes import Route, target_finder

NAME: Final = "paths"
# The first segments of the server's own paths; a test compares them with its routes.
_RESERVED: Final = """
    predictions explanations invocations v1 v2 openai wfpredict
    models workflows console events frontends logging parking recording
    token ping livez readyz metrics api-description openapi.json docs
"""
RESERVED: Final = frozenset(_RESERVED.split())
NONE: Final = r"(?!)"
"""As an expression for paths: which these are is only known while models come and go."""

_DEEPEST: Final = 8
_FORM: Final = re.compile(rf"(?:/(?!\.\.?(?:/|$))[\w.~-]+){{1,{_DEEPEST}}}", re.ASCII)
_LONGEST: Final = 256


class OwnPaths:
    """The paths that versions of models in the registry have, or will have when they are ready."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # The (name, version) pairs by their path.
        self._claims: dict[str, set[tuple[str, str]]] = {}

    def claim(self, model: ModelVersion) -> None:
        """Reserves the version's path for its model.

        Raises:
            BadRequest: the path is none, or hides one of the server's.
            Conflict: it belongs to another model.
        """
        path = model.options.values["route"]
        if path is None:
            return
        check(path)
        for name, version in list(self._claims.get(path, ())):
            if not self._is_current(name, version, path):
                self._claims[path].discard((name, version))
            elif name != model.name:
                raise Conflict(f"route={path} belongs to the model {name} already.")
        self._claims.setdefault(path, set()).add((model.name, model.version))

    def _is_current(self, name: str, version: str, path: str) -> bool:
        """Whether the version has the path, or is being prepared with it."""
        if (name, version) not in self._registry:
            return self._is_reserved(name, version)
        model = self._registry.get(name, version)
        loads = model.replacement is not None and model.replacement.state == "LOADING"
        return loads or self._has(name, version, path)

    def _is_reserved(self, name: str, version: str) -> bool:
        try:
            self._registry.reserve(name, version)
        except Conflict:
            return True
        self._registry.release(name, version)
        return False

    def _has(self, name: str, version: str, path: str) -> bool:
        has = (name, version) in self._registry
        return has and self._registry.get(name, version).options.values["route"] == path

    def route(self, path: str) -> Route | None:
        """The route of a decoded path at or below that of a model; the longest of these counts."""
        segments = path.split("/", _DEEPEST + 1)
        for depth in range(min(len(segments) - 1, _DEEPEST), 0, -1):
            root = "/".join(segments[: depth + 1])
            for name, version in self._claims.get(root, ()):
                if self._has(name, version, root):
                    rest = path[len(root) :].strip("/")
                    return Route(name, url_path=rest, protocol=NAME, root=root)
        return None

    def finder(self, find: Callable[[bytes], Target | None]) -> Callable[[bytes], Target | None]:
        """What finds targets as ``find`` does, and those at paths of models."""
        read = target_finder([(NAME, ".*")])

        def find_own(url: bytes) -> Target | None:
            target = read(url) if self._claims else None
            route = None if target is None else self.route(target.path)
            return find(url) if target is None or route is None else replace(target, route=route)

        return find_own


def check(path: object) -> None:
    """Raises BadRequest for what is no path, and for one that would hide the server's own."""
    if not isinstance(path, str) or len(path) > _LONGEST or not _FORM.fullmatch(path):
        raise BadRequest(
            f"route={str(path)[:_LONGEST]}: a path such as /api is needed, of at most {_DEEPEST} segments "
            "with letters, digits, and ._~-"
        )
    if (first := path.split("/")[1]).lower() in RESERVED:
        raise BadRequest(f"route={path}: the server's own paths begin with /{first}; choose another one")
