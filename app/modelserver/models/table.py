"""The registered models and their default versions: what requests look up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.errors import Conflict, InvalidModel, ModelNotFound, ModelVersionNotFound
from modelserver.models.version import FailedVersion, ModelVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelserver.models.version import Headed, ModelRouter


# Characters of a model's name, which becomes part of paths, file names and log lines.
LONGEST_NAME = 256


@dataclass(slots=True)
class _Model:
    """All versions under one name."""

    default: str
    versions: dict[str, ModelVersion] = field(default_factory=dict)
    traffic: ModelRouter | None = None


class ModelTable:
    """The versions of all models.

    ``tells_names``: an error for a model or version that is not there says which are.
    """

    def __init__(self, *, tells_names: bool = False) -> None:
        self._tells_names = tells_names
        self._models: dict[str, _Model] = {}

    # -- looking up

    def get(self, name: str, version: str | None = None) -> ModelVersion:
        """The named or the default version. Raises ModelNotFound, ModelVersionNotFound."""
        model = self._named(name)
        result = model.versions.get(model.default if version is None else version)
        if result is None:
            others = model.versions if self._tells_names else None
            raise ModelVersionNotFound.named(name, version or model.default, others)
        return result

    def _named(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound.named(name, self._models if self._tells_names else None)
        return model

    def version_for(self, name: str, version: str | None, request: Headed) -> ModelVersion:
        """The version for a request, which is counted; without a named version, the router may choose it.

        Raises ModelNotFound, ModelVersionNotFound.
        """
        model = self.get(name, version)
        if model.traffic is not None and version is None:
            model = model.traffic.choose(request)
        model.metrics.requests.received(version is not None)
        return model

    @staticmethod
    def check_name(name: str, kind: str = "model") -> None:
        """Raises InvalidModel for a name that cannot be part of a path: no request could reach it."""
        if "/" in name or name in (".", "..") or not name.isprintable():
            raise InvalidModel(f"The {kind} name {name!r} cannot be part of a path.")
        if len(name) > LONGEST_NAME:
            raise InvalidModel(f"The {kind} name has {len(name)} characters, {LONGEST_NAME} are allowed.")

    def has(self, name: str, version: str) -> bool:
        """Whether the version is registered, even if it failed."""
        return name in self._models and version in self._models[name].versions

    def names(self) -> list[str]:
        """The registered names in the order of their registration."""
        return list(self._models)

    def versions(self, name: str | None = None) -> list[ModelVersion]:
        """All versions, or all of one model; raises :class:`ModelNotFound`."""
        if name is None:
            return [version for model in self._models.values() for version in model.versions.values()]
        return list(self._named(name).versions.values())

    def defaults(self) -> Iterator[ModelVersion]:
        for model in self._models.values():
            yield model.versions[model.default]

    def is_default(self, model: ModelVersion) -> bool:
        return self._models[model.name].default == model.version

    def is_ready(self, name: str, version: str | None = None) -> bool:
        """Whether a request for the model, or this version of it, would find a loaded worker.

        Raises ModelNotFound, ModelVersionNotFound.
        """
        model = self.get(name, version)
        if version is None and model.traffic is not None:
            return model.traffic.ready
        return model.pool.ready

    @property
    def healthy(self) -> bool:
        """Whether every model's default version has the workers it should have (reference 6.2)."""
        return all(model.pool.healthy for model in self.defaults())

    # -- changing

    def add(self, model: ModelVersion) -> None:
        """Adds a version; it replaces a failed one, also as the default."""
        entry = self._models.setdefault(model.name, _Model(model.version))
        if isinstance(entry.versions.get(entry.default), FailedVersion):
            entry.default = model.version
        entry.versions[model.version] = model
        self._follow(entry)

    @staticmethod
    def _follow(entry: _Model, moved: tuple[str, str] | None = None) -> None:
        """The versions have changed; ``moved``: one was replaced by one of perhaps another name."""
        if entry.traffic is not None:
            for version in entry.versions.values():
                version.traffic = entry.traffic
            entry.traffic.follow(entry.versions, entry.default, moved)

    def remove(self, model: ModelVersion) -> None:
        """Removes a version, and the model with its last one; if it was the default, another version is."""
        entry = self._models[model.name]
        del entry.versions[model.version]
        if not entry.versions:
            self._set_traffic(entry, None)
            del self._models[model.name]
        else:
            if entry.default == model.version:
                entry.default = next(iter(entry.versions))
            self._follow(entry)

    def make_default(self, name: str, version: str) -> None:
        """Makes a version the default. Raises ModelNotFound, ModelVersionNotFound."""
        entry = self._named(name)
        if version not in entry.versions:
            raise ModelVersionNotFound(f"Model version {version} does not exist for model {name}")
        entry.default = version
        if entry.traffic is not None:
            entry.traffic.send_all(f"{version} was made the default version")
            self._follow(entry)

    def exchange(self, before: ModelVersion, model: ModelVersion) -> None:
        """Replaces the version ``before`` by another. Raises Conflict if it was unregistered."""
        if not self._holds(before):
            raise Conflict(
                f"Model {before.name} {before.version} was unregistered while it was being reloaded"
            )
        entry = self._models[before.name]
        if entry.default == before.version:
            entry.default = model.version
        # Keeping its position.
        entry.versions = {
            version.version: version
            for version in (model if each is before else each for each in entry.versions.values())
        }
        model.arrivals = before.arrivals
        model.arrivals.replaced()
        self._follow(entry, (before.version, model.version))

    def _holds(self, model: ModelVersion) -> bool:
        return self.has(model.name, model.version) and self.get(model.name, model.version) is model

    def set_traffic(self, name: str, traffic: ModelRouter | None) -> None:
        """Requests for the model that name no version follow ``traffic`` from now on."""
        self._set_traffic(self._models[name], traffic)

    @staticmethod
    def _set_traffic(entry: _Model, traffic: ModelRouter | None) -> None:
        before, entry.traffic = entry.traffic, traffic
        if before is not None and before is not traffic:
            before.close()
        for version in entry.versions.values():
            version.traffic = traffic
