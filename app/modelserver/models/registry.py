"""The registered models: which there are, which version is the default, what changes them (reference 5)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.errors import (
    BadRequest,
    Conflict,
    InvalidModel,
    InvalidModelVersion,
    ModelNotFound,
    ModelServerError,
    ModelVersionNotFound,
    StartFailed,
)
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelserver.models.options import Registration
    from modelserver.models.preparation import Preparation
    from modelserver.workers.worker import Worker

_log = logging.getLogger("modelserver.models")

# Each is a process.
MAX_WORKERS = 1024
# Of a model's name, in characters: it becomes part of paths, file names and log lines.
LONGEST_NAME = 256

__all__ = ["ModelVersion", "Registry", "Scaling"]


@dataclass(slots=True)
class _Model:
    """All versions under one name."""

    default: str
    versions: dict[str, ModelVersion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a change of the number of workers led to. ``complete``: at least ``min_workers`` are loaded."""

    model: ModelVersion
    complete: bool


class Registry:
    """Changes come from the management API and from the start; requests only look up.

    What changes one model waits for what changes it already; different models do not wait for each other.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._models: dict[str, _Model] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    # -- looking up

    def get(self, name: str, version: str | None = None) -> ModelVersion:
        """The version, the default one if none is named.

        Raises:
            ModelNotFound, ModelVersionNotFound
        """
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound.named(name)
        found = model.versions.get(model.default if version is None else version)
        if found is None:
            raise ModelVersionNotFound.named(name, version or model.default)
        return found

    def names(self) -> list[str]:
        """The registered names in the order of their registration."""
        return list(self._models)

    def versions(self, name: str | None = None) -> list[ModelVersion]:
        """All versions, or all of one model; raises :class:`ModelNotFound`."""
        if name is None:
            return [version for model in self._models.values() for version in model.versions.values()]
        if name not in self._models:
            raise ModelNotFound.named(name)
        return list(self._models[name].versions.values())

    def defaults(self) -> Iterator[ModelVersion]:
        """The default version of each model."""
        for model in self._models.values():
            yield model.versions[model.default]

    def is_default(self, model: ModelVersion) -> bool:
        return self._models[model.name].default == model.version

    @property
    def healthy(self) -> bool:
        """Whether every model's default version has the workers it should have (reference 6.2)."""
        return all(model.pool.healthy for model in self.defaults())

    # -- changing

    async def register(
        self,
        registration: Registration,
        *,
        at_startup: bool = False,
        on_progress: Callable[[str], None] | None = None,
    ) -> ModelVersion:
        """Makes a model version known and starts its workers, without waiting for them.

        Raises:
            ModelServerError: as reference 5.2 lists; nothing is left of the attempt then.
        """
        archive = await self._preparation.open(registration.url or "", on_progress)
        try:
            name = registration.model_name or archive.manifest.model_name
            if not name and at_startup:
                name = self._preparation.default_name(archive.url)
            if not name:
                raise InvalidModel("Model name is not defined.")  # noqa: TRY301 - the archive must go
            check_name(name)
            version = archive.manifest.model_version
            self._reserve(name, version)
            try:
                model = self._preparation.build(name, registration, archive, at_startup=at_startup)
                check_workers(model.options.min_workers)
            finally:
                self._reserved.discard((name, version))
        except BaseException:
            await asyncio.to_thread(archive.remove)
            raise
        self._models.setdefault(name, _Model(version)).versions[version] = model
        _log.info("Model %s loaded.", name)
        model.pool.scale(model.options.min_workers, model.options.max_workers)
        return model

    def _reserve(self, name: str, version: str) -> None:
        taken = name in self._models and version in self._models[name].versions
        if taken or (name, version) in self._reserved:
            raise Conflict(f"Model version {version} is already registered for model {name}")
        self._reserved.add((name, version))

    async def wait_loaded(self, model: ModelVersion) -> Scaling:
        """Waits for a new registration's workers; a failure takes the registration back.

        Raises:
            StartFailed: with the cause, after the registration is gone.
        """
        try:
            return await self._wait(model, model.pool.workers, model.version)
        except StartFailed:
            async with self._lock(model.name):
                await self._remove(model)
            raise

    async def scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> list[Worker]:
        """Changes the number of workers; returns those that were started.

        Raises:
            ModelNotFound, ModelVersionNotFound
            BadRequest: more than MAX_WORKERS.
        """
        check_workers(min_workers)
        async with self._lock(name):
            return self.get(name, version).pool.scale(min_workers, max_workers)

    async def wait_scaled(self, model: ModelVersion, workers: list[Worker], version: str | None) -> Scaling:
        """Waits for the workers that a change started. Raises :class:`StartFailed`."""
        return await self._wait(model, workers, version)

    async def _wait(self, model: ModelVersion, workers: list[Worker], version: str | None) -> Scaling:
        try:
            await model.pool.wait_loaded(list(workers))
        except StartFailed as failure:
            message = f"Failed to start workers for model {model.name} version: {version or 'null'}"
            raise StartFailed(f"{message}. {failure.message}", failure.status) from failure
        return Scaling(model, model.pool.statistics().ready >= model.pool.min_workers)

    async def set_default(self, name: str, version: str) -> None:
        """Makes a version the default. Raises ModelNotFound, ModelVersionNotFound."""
        async with self._lock(name):
            if name not in self._models:
                raise ModelNotFound.named(name)
            if version not in self._models[name].versions:
                raise ModelVersionNotFound(f"Model version {version} does not exist for model {name}")
            self._models[name].default = version

    async def unregister(self, name: str, version: str | None) -> None:
        """Removes a version, the default one if none is named; what waits for it is refused.

        Raises:
            ModelNotFound, ModelVersionNotFound
            InvalidModelVersion: it is the default and there are others.
        """
        async with self._lock(name):
            model = self.get(name, version)
            if self.is_default(model) and len(self._models[name].versions) > 1:
                raise InvalidModelVersion(f"Cannot remove default version for model {name}")
            await self._remove(model)

    async def _remove(self, model: ModelVersion) -> None:
        entry = self._models.get(model.name)
        if entry is None or entry.versions.get(model.version) is not model:
            return
        del entry.versions[model.version]
        if not entry.versions:
            del self._models[model.name]
        elif entry.default == model.version:
            entry.default = next(iter(entry.versions))
        await self._preparation.dismantle(model)

    def _lock(self, name: str) -> asyncio.Lock:
        """One lock per registered name; those of models that are gone are dropped."""
        lock = self._locks.get(name)
        if lock is None:
            self._locks = {n: held for n, held in self._locks.items() if n in self._models or held.locked()}
            lock = self._locks[name] = asyncio.Lock()
        return lock

    # -- start and end

    async def load_initial(self, on_progress: Callable[[str], None]) -> None:
        """Registers what the settings name (reference 2.3); what cannot be is logged and left out."""
        for registration in await asyncio.to_thread(self._preparation.initial):
            _log.info("Loading initial models: %s", registration.url)
            on_progress(f"Loading {registration.url}")
            try:
                model = await self.register(registration, at_startup=True, on_progress=on_progress)
            except ModelServerError as error:
                _log.error("Failed to load model: %s: %s", registration.url, error.message)
            else:
                model.loaded_at_startup = True

    async def drain(self, grace: float) -> None:
        """Serves what waits, at most ``grace`` seconds; nothing new is taken in."""
        await asyncio.gather(*(model.pool.drain(grace) for model in self.versions()))

    async def close(self, grace: float) -> None:
        """Ends all workers and removes what was unpacked."""
        models = self.versions()
        await asyncio.gather(*(model.pool.close(grace) for model in models))
        self._models.clear()
        for model in models:
            await asyncio.to_thread(model.archive.close)


def check_name(name: str) -> None:
    """Raises :class:`InvalidModel` for a name that no path could ask for, so that nobody could remove it."""
    if "/" in name or name in (".", "..") or not name.isprintable():
        raise InvalidModel(f"The model name {name!r} cannot be part of a path.")
    if len(name) > LONGEST_NAME:
        raise InvalidModel(f"The model name has {len(name)} characters, {LONGEST_NAME} are allowed.")


def check_workers(count: int) -> None:
    """Raises :class:`BadRequest` for a number of processes that can only be a mistake."""
    if count > MAX_WORKERS:
        raise BadRequest(f"{count} workers were asked for, a model may have {MAX_WORKERS}.")
