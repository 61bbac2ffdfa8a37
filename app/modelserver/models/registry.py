"""The operations that change the registered models (reference 5)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from modelserver.engine.pools.crew import wait_loaded
from modelserver.engine.telemetry.text import without_credentials
from modelserver.errors import (
    BadRequest,
    Conflict,
    InvalidModel,
    InvalidModelVersion,
    StartFailed,
)
from modelserver.models.archives.archive import nameless
from modelserver.models.routing import DefaultRouter
from modelserver.models.table import ModelTable
from modelserver.models.version import FailedVersion, ModelVersion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from modelserver.engine.pools.worker import Worker
    from modelserver.models.archives.archive import ModelArchive
    from modelserver.models.builder import VersionBuilder
    from modelserver.models.changes import Change
    from modelserver.models.options.resolve import Registration
    from modelserver.models.routing import Router
    from modelserver.models.version import SavedWorkflow

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
        taken = self.has(name, version) and not isinstance(self.get(name, version), FailedVersion)
        if taken or (name, version) in self._reserved:
            raise Conflict(f"Model version {version} is already registered for model {name}")
        self._reserved.add((name, version))

    def release(self, name: str, version: str) -> None:
        self._reserved.discard((name, version))

    async def wait_loaded(self, model: ModelVersion) -> bool:
        """As :meth:`wait_scaled` for a new registration, which is undone if that raises StartFailed."""
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
        """As :meth:`get`. Raises Conflict while the version is being replaced: the change would be lost."""
        model = self.get(name, version)
        if model.replacement is not None and model.replacement.state == "LOADING":
            raise Conflict(
                f"Model {name} version {model.version} is being replaced by {model.replacement.url}; "
                "wait until that is over"
            )
        return model

    def forget(self, model: ModelVersion) -> None:
        """Removes the version's metrics, unless its name and version are in use or reserved again."""
        if (model.name, model.version) not in self._reserved and not self.has(model.name, model.version):
            self.builder.forget(model)

    async def _remove(self, model: ModelVersion) -> None:
        if self._holds(model):
            self.remove(model)
            _log.info("Model %s %s is unregistered.", model.name, model.version)
            await self.builder.dismantle(model)
            self.forget(model)

    def lock(self, name: str) -> asyncio.Lock:
        """One lock per registered name; those of removed models are dropped."""
        lock = self._locks.get(name)
        if lock is None:
            names = set(self.names())
            self._locks = {each: held for each, held in self._locks.items() if each in names or held.locked()}
            lock = self._locks[name] = asyncio.Lock()
        return lock

    # -- start and end

    async def drain(self, grace: float) -> None:
        """Serves waiting requests for up to ``grace`` seconds; new ones are refused."""
        await self._break_off()
        await asyncio.gather(
            *(model.pool.drain(grace) for model in self.versions()), self._wait_retired(grace)
        )

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
