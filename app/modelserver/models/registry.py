"""The operations that change the registered models (reference 5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.engine.pools.crew import wait_loaded
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.text import without_credentials
from modelserver.errors import (
    BadRequest,
    Conflict,
    InvalidModel,
    InvalidModelVersion,
    ModelNotFound,
    ModelVersionNotFound,
    StartFailed,
)
from modelserver.models.archives.archive import ModelArchive, nameless
from modelserver.models.builder import VersionBuilder
from modelserver.models.options.resolve import Registration
from modelserver.models.version import DefaultRouter, Headed, ModelRouter, ModelVersion, Router, SavedWorkflow

if TYPE_CHECKING:
    from modelserver.models.changes import Change

# The registered models and their default versions: what requests look up.

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
        if (result := model.versions.get(model.default if version is None else version)) is None:
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

    def __contains__(self, named: tuple[str, ...]) -> bool:
        """Whether the version of a model is registered, even if it failed."""
        name, version = named
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

    def readiness(self) -> list[bool]:
        """For each model that should have workers, whether it has a loaded one."""
        return [model.pool.ready for model in self.defaults() if model.pool.min_workers]

    @property
    def healthy(self) -> bool:
        """Whether every model's default version has the workers it should have (reference 6.2)."""
        return all(model.pool.healthy for model in self.defaults())

    # -- changing

    def add(self, model: ModelVersion) -> None:
        """Adds a version; it replaces a failed one, also as the default."""
        entry = self._models.setdefault(model.name, _Model(model.version))
        if (default := entry.versions.get(entry.default)) is not None and default.failure:
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
            self.set_traffic(model.name, None)
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
        model.histories |= before.histories
        for history in before.histories.values():
            history.replaced()
        self._follow(entry, (before.version, model.version))

    def _holds(self, model: ModelVersion) -> bool:
        return (model.name, model.version) in self and self.get(model.name, model.version) is model

    def set_traffic(self, name: str, traffic: ModelRouter | None) -> None:
        """Requests for the model that name no version follow ``traffic`` from now on."""
        entry = self._models[name]
        before, entry.traffic = entry.traffic, traffic
        if before is not None and before is not traffic:
            before.close()
        for version in entry.versions.values():
            version.traffic = traffic


_log = logging.getLogger("modelserver.models")

# Each is a process.
MAX_WORKERS = 1024


class Registry(ModelTable):
    """Changed by the management API and at startup; requests only look up.

    Changes to one model are made one at a time; different models do not wait for each other. ``on_change`` is
    awaited after each accepted change, before its caller gets the result. ``replacing`` and ``retiring`` are
    the tasks of :mod:`modelserver.models.replacing` that load versions and end replaced ones. ``workflows``
    are those that snapshots keep too, by name. ``router`` divides requests among versions. ``tells_names``:
    an error for a model or version that is not there says which are.
    """

    def __init__(self, builder: VersionBuilder, *, tells_names: bool = False) -> None:
        self.builder = builder
        super().__init__(tells_names=tells_names)
        self.replacing: set[asyncio.Task[ModelVersion]] = set()
        self.retiring: set[asyncio.Task[None]] = set()
        self._reserved: set[tuple[str, str]] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self.on_change: Callable[[], Awaitable[None]] | None = None
        self.router: Router = DefaultRouter()
        self.workflows: dict[str, SavedWorkflow] = {}

    # -- changing

    async def register(
        self,
        registration: Registration,
        *,
        at_startup: bool = False,
        fallback_name: str = "",
        on_progress: Callable[[str], None] | None = None,
        opening: Awaitable[ModelArchive] | None = None,
    ) -> ModelVersion:
        """Registers a model version and starts its workers, without waiting for them.

        ``fallback_name`` is used if neither the registration nor the manifest names the model; ``opening``
        opens the archive, if that has begun. Raises ModelServerError as listed in reference 5.2, leaving
        nothing behind.
        """
        archive = await (opening or self.builder.open(registration, on_progress))
        async with AsyncExitStack() as undo:
            undo.push_async_callback(asyncio.to_thread, archive.remove)
            name = registration.model_name or archive.manifest.model_name or fallback_name
            if not name:
                raise nameless(archive.url, archive.manifest)
            self.check_name(name)
            version = archive.manifest.model_version
            self.reserve(name, version)
            try:
                model = await self.builder.build(
                    name, registration, archive, at_startup=at_startup, on_progress=on_progress
                )
                check_workers(model.options.min_workers)
                await self._check_traffic(model)
            finally:
                self.release(name, version)
            undo.pop_all()
        self.add(model)
        _log.info("Model %s loaded.", name, extra={"label": model.pool.label})
        model.pool.scale(model.options.min_workers, model.options.max_workers)
        self._direct_as_its_file(model)
        await self.changed()
        return model

    async def _check_traffic(self, model: ModelVersion) -> None:
        """Raises InvalidModel if the model's file has traffic that no versions could have."""
        if model.options.traffic is None:
            return
        try:
            await asyncio.to_thread(self.router.check, model.options.traffic)
        except BadRequest as error:
            message = f"{without_credentials(model.url)}: model-config.yaml: traffic: {error.message}"
            raise InvalidModel(message) from None

    def _direct_as_its_file(self, model: ModelVersion) -> None:
        """Carries out what the version's file says of the traffic; if that is not possible yet, warns."""
        if model.options.traffic is None:
            return
        reason = f"{model.version} was registered, and its model-config.yaml sets the traffic"
        try:
            self.router.direct(model.name, model.options.traffic, reason)
        except BadRequest as error:
            _log.warning(
                "%s %s: traffic in its model-config.yaml: %s", model.name, model.version, error.message
            )

    async def changed(self) -> None:
        if self.on_change is not None:
            await self.on_change()

    def reserve(self, name: str, version: str) -> None:
        """Reserves name and version for one that is being prepared. Raises Conflict."""
        taken = (name, version) in self and not self.get(name, version).failure
        if taken or (name, version) in self._reserved:
            raise Conflict(f"Model version {version} is already registered for model {name}")
        self._reserved.add((name, version))

    def release(self, name: str, version: str) -> None:
        self._reserved.discard((name, version))

    async def wait_loaded(self, model: ModelVersion) -> bool:
        """Calls :meth:`wait_scaled` for a new registration, which StartFailed rolls back."""
        try:
            return await self.wait_scaled(model, model.pool.workers, model.version)
        except StartFailed:
            async with self.lock(model.name):
                await self._remove(model)
            await self.changed()
            raise

    async def scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> list[Worker]:
        """Changes the number of workers; returns those that were started.

        Raises ModelNotFound, ModelVersionNotFound, BadRequest above MAX_WORKERS, Conflict while being
        replaced.
        """
        check_workers(min_workers)
        async with self.lock(name):
            started = (model := self.changeable(name, version)).pool.scale(min_workers, max_workers)
            _log.info("Workers of %s: %d to %d, by request", model.pool.label, min_workers, max_workers)
        await self.changed()
        return started

    async def change(self, name: str, version: str | None, change: Change) -> None:
        """Changes how a running version is served, completely or not at all.

        Raises ModelNotFound, ModelVersionNotFound, BadRequest if unsupported, Conflict while being replaced.
        """
        async with self.lock(name):
            model = self.changeable(name, version)
            self.builder.reconfigure(model, change)
        _log.info("%s: %s", name, change, extra={"event": "changed", "label": model.pool.label})
        await self.changed()

    async def wait_scaled(self, model: ModelVersion, workers: list[Worker], version: str | None) -> bool:
        """Waits for the workers that a change started; whether at least ``min_workers`` have loaded then.

        Raises StartFailed.
        """
        try:
            await wait_loaded(list(workers))
        except StartFailed as failure:
            message = f"Failed to start workers for model {model.name} version: {version or 'null'}"
            archive = repr(without_credentials(model.archive.url))
            # Its frames refer to the workers, and these to it: a cycle.
            failure.__traceback__ = None
            raise StartFailed(f"{message}. Archive {archive}: {failure.message}", failure.status) from failure
        return model.pool.statistics().ready >= model.pool.min_workers

    async def set_default(self, name: str, version: str) -> None:
        """Makes a version the default. Raises ModelNotFound, ModelVersionNotFound."""
        async with self.lock(name):
            self.make_default(name, version)
            _log.info("Model %s %s is the default version", name, version)
        await self.changed()

    async def unregister(self, name: str, version: str | None) -> None:
        """Removes the named or the default version; requests still waiting after the grace are refused.

        Raises ModelNotFound, ModelVersionNotFound, InvalidModelVersion for the default version if there are
        others, Conflict while being replaced.
        """
        async with self.lock(name):
            model = self.changeable(name, version)
            if self.is_default(model) and len(self.versions(name)) > 1:
                raise InvalidModelVersion(f"Cannot remove default version for model {name}")
            await self._remove(model)
        await self.changed()

    def changeable(self, name: str, version: str | None) -> ModelVersion:
        """Returns the version to change. Raises Conflict while it is replaced: a change would be lost."""
        model = self.get(name, version)
        if model.replacement is not None and model.replacement.state == "LOADING":
            raise Conflict(
                f"Model {name} version {model.version} is being replaced by {model.replacement.url}; "
                "wait until that is over"
            )
        return model

    def forget(self, model: ModelVersion) -> None:
        """Removes the version's metrics, unless its name and version are in use or reserved again."""
        if (model.name, model.version) not in self._reserved and (model.name, model.version) not in self:
            self.builder.metrics.forget(model.name, model.version)

    async def _remove(self, model: ModelVersion) -> None:
        if self._holds(model):
            self.remove(model)
            _log.info("Model %s %s is unregistered.", model.name, model.version)
            await self.builder.dismantle(model)
            self.forget(model)

    def lock(self, name: str) -> asyncio.Lock:
        """One lock per registered name; those of removed models are dropped."""
        if (lock := self._locks.get(name)) is None:
            names = set(self.names())
            self._locks = {each: held for each, held in self._locks.items() if each in names or held.locked()}
            lock = self._locks[name] = asyncio.Lock()
        return lock

    # -- start and end

    async def drain(self, grace: float) -> None:
        """Serves waiting requests for up to ``grace`` seconds; new ones are refused."""
        await self._break_off()
        drains = (model.pool.drain(grace) for model in self.versions())
        await asyncio.gather(*drains, self._wait_retired(grace))

    async def _break_off(self) -> None:
        for task in self.replacing:
            task.cancel()
        await asyncio.gather(*self.replacing, return_exceptions=True)

    async def _wait_retired(self, grace: float) -> None:
        """Lets replaced versions answer their waiting requests, then ends them."""
        if self.retiring:
            _, left = await asyncio.wait(self.retiring, timeout=grace)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def close(self, grace: float) -> None:
        """Ends all workers and removes the unpacked archives."""
        await self._break_off()
        await self._wait_retired(0.0)
        models = self.versions()
        for name in self.names():
            self.set_traffic(name, None)
        await asyncio.gather(*(model.pool.close(grace) for model in models))
        self._models.clear()
        self.builder.close()
        for model in models:
            await asyncio.to_thread(model.archive.close)


def check_workers(count: int) -> None:
    """Raises :class:`BadRequest` above MAX_WORKERS."""
    if count > MAX_WORKERS:
        raise BadRequest(f"{count} workers were requested, a model may have {MAX_WORKERS}.")
