"""The registered models: which there are, which version is the default, what changes them (reference 5)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from modelserver.archives.archive import nameless
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
from modelserver.models.replacement import check_replaceable, taken_over, worker_count
from modelserver.models.version import FailedVersion, ModelVersion, Replacement, mar_name
from modelserver.options.resolve import REGISTER, SNAPSHOT
from modelserver.telemetry.text import without_credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from modelserver.models.changes import Change
    from modelserver.models.preparation import Preparation
    from modelserver.models.version import SavedModel
    from modelserver.options.resolve import Registration
    from modelserver.pools.worker import Worker

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
    ``on_change`` is awaited after each change that was accepted, before its caller is told.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._models: dict[str, _Model] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._replacing: set[asyncio.Task[ModelVersion]] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self.on_change: Callable[[], Awaitable[None]] | None = None

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
        archive = await self._preparation.open(registration, on_progress)
        try:
            name = registration.model_name or archive.manifest.model_name
            if not name and at_startup:
                name = self._preparation.default_name(archive.url)
            if not name:
                raise nameless(archive.url, archive.manifest)  # noqa: TRY301 - the archive must go
            check_name(name)
            version = archive.manifest.model_version
            self._reserve(name, version)
            try:
                model = await self._preparation.build(
                    name, registration, archive, at_startup=at_startup, on_progress=on_progress
                )
                check_workers(model.options.min_workers)
            finally:
                self._reserved.discard((name, version))
        except BaseException:
            await asyncio.to_thread(archive.remove)
            raise
        self._add(model)
        _log.info("Model %s loaded.", name)
        model.pool.scale(model.options.min_workers, model.options.max_workers)
        await self._changed()
        return model

    def _add(self, model: ModelVersion) -> None:
        """A version that failed gives way, as itself and as the default."""
        entry = self._models.setdefault(model.name, _Model(model.version))
        if isinstance(entry.versions.get(entry.default), FailedVersion):
            entry.default = model.version
        entry.versions[model.version] = model

    async def _changed(self) -> None:
        if self.on_change is not None:
            await self.on_change()

    def _reserve(self, name: str, version: str) -> None:
        entry = self._models.get(name)
        found = None if entry is None else entry.versions.get(version)
        taken = found is not None and not isinstance(found, FailedVersion)
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
            await self._changed()
            raise

    async def scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> list[Worker]:
        """Changes the number of workers; returns those that were started.

        Raises:
            ModelNotFound, ModelVersionNotFound
            BadRequest: more than MAX_WORKERS.
            Conflict: it is being replaced.
        """
        check_workers(min_workers)
        async with self._lock(name):
            started = self._changeable(name, version).pool.scale(min_workers, max_workers)
        await self._changed()
        return started

    async def change(self, name: str, version: str | None, change: Change) -> None:
        """Changes how a running version is served.

        Raises:
            ModelNotFound, ModelVersionNotFound
            BadRequest: what this version cannot have; nothing is changed then.
            Conflict: it is being replaced.
        """
        async with self._lock(name):
            model = self._changeable(name, version)
            self._preparation.reconfigure(model, change)
        _log.info("%s: %s", name, change)
        await self._changed()

    async def wait_scaled(self, model: ModelVersion, workers: list[Worker], version: str | None) -> Scaling:
        """Waits for the workers that a change started. Raises :class:`StartFailed`."""
        return await self._wait(model, workers, version)

    async def _wait(self, model: ModelVersion, workers: list[Worker], version: str | None) -> Scaling:
        try:
            await model.pool.wait_loaded(list(workers))
        except StartFailed as failure:
            message = f"Failed to start workers for model {model.name} version: {version or 'null'}"
            archive = repr(without_credentials(model.archive.url))
            raise StartFailed(f"{message}. Archive {archive}: {failure.message}", failure.status) from failure
        return Scaling(model, model.pool.statistics().ready >= model.pool.min_workers)

    async def set_default(self, name: str, version: str) -> None:
        """Makes a version the default. Raises ModelNotFound, ModelVersionNotFound."""
        async with self._lock(name):
            if name not in self._models:
                raise ModelNotFound.named(name)
            if version not in self._models[name].versions:
                raise ModelVersionNotFound(f"Model version {version} does not exist for model {name}")
            self._models[name].default = version
        await self._changed()

    async def unregister(self, name: str, version: str | None) -> None:
        """Removes a version, the default one if none is named; what waits for it is refused.

        Raises:
            ModelNotFound, ModelVersionNotFound
            InvalidModelVersion: it is the default and there are others.
            Conflict: it is being replaced.
        """
        async with self._lock(name):
            model = self._changeable(name, version)
            if self.is_default(model) and len(self._models[name].versions) > 1:
                raise InvalidModelVersion(f"Cannot remove default version for model {name}")
            await self._remove(model)
        await self._changed()

    def _changeable(self, name: str, version: str | None) -> ModelVersion:
        """As :meth:`get`. Raises Conflict while the version is being replaced: the change would be lost."""
        model = self.get(name, version)
        if model.replacement is not None and model.replacement.state == "LOADING":
            raise Conflict(
                f"Model {name} version {model.version} is being replaced by {model.replacement.url}; "
                "wait until that is over"
            )
        return model

    async def replace_archive(
        self, name: str, version: str | None, given: Registration
    ) -> asyncio.Task[ModelVersion]:
        """Begins to replace a version by another archive, with the settings it has where none are ``given``.

        Returns when the archive is known to be one; the task is done when the new version serves, or cannot.

        Raises:
            ModelServerError: as for a registration.
            Conflict: it is being replaced already.
            BadRequest: its requests belong to sequences.
            OutOfMemory: both together have no room.
        """
        before = self._changeable(name, version)
        check_replaceable(before)
        return await self._begin_replacing(before, taken_over(before, given), guarded=True)

    async def replace(self, before: ModelVersion, registration: Registration) -> ModelVersion:
        """Loads a model anew; once its workers are loaded it takes the place of the version ``before``.

        Until then, and if it cannot be loaded, that one goes on serving (F52). What waits for it then is
        served by it still.

        Raises:
            ModelServerError: as for a registration; Conflict if it is being replaced already.
        """
        self._changeable(before.name, before.version)
        return await asyncio.shield(await self._begin_replacing(before, registration))

    async def _begin_replacing(
        self, before: ModelVersion, registration: Registration, *, guarded: bool = False
    ) -> asyncio.Task[ModelVersion]:
        if before.registration.trusted and registration.url == before.registration.url:
            registration = replace(registration, trusted=True)
        url = without_credentials(registration.url or "")
        replacement = before.replacement = Replacement(url)
        try:
            model = await self._build_beside(before, registration, guarded=guarded)
        except BaseException as error:
            self._stays(before, replacement, error)
            raise
        replacement.version = model.version
        _log.info("Model %s %s: %s is loaded beside it", before.name, before.version, url)
        task = asyncio.create_task(self._load_and_exchange(before, model, replacement))
        self._replacing.add(task)
        task.add_done_callback(self._replaced)
        return task

    def _replaced(self, task: asyncio.Task[ModelVersion]) -> None:
        self._replacing.discard(task)
        if not task.cancelled():
            task.exception()  # seen, if only here: it is in the log

    @staticmethod
    def _stays(before: ModelVersion, replacement: Replacement, error: BaseException) -> None:
        reason = error.message if isinstance(error, ModelServerError) else str(error) or "it was broken off"
        replacement.failed(reason)
        _log.error(
            "Model %s %s is not replaced by %s and stays as it is: %s",
            *(before.name, before.version, replacement.url, reason),
        )

    async def _build_beside(
        self, before: ModelVersion, registration: Registration, *, guarded: bool
    ) -> ModelVersion:
        """The version that is to take the place, without workers; its name and version are reserved."""
        archive = await self._preparation.open(registration, beside=before.archive.downloaded)
        name, version = before.name, archive.manifest.model_version
        try:
            if version != before.version:
                self._reserve(name, version)
            try:
                model = await self._preparation.build(name, registration, archive, at_startup=False)
            except BaseException:
                self._reserved.discard((name, version))
                raise
        except BaseException:
            await asyncio.to_thread(archive.remove)
            raise
        try:
            check_workers(model.options.min_workers)
            if guarded:
                self._preparation.check_room(before, model)
        except BaseException:
            await self._abandon(model)
            raise
        return model

    async def _abandon(self, model: ModelVersion) -> None:
        self._reserved.discard((model.name, model.version))
        await self._preparation.abandon(model)
        self._forget(model)

    async def _retire(self, before: ModelVersion, model: ModelVersion) -> None:
        try:
            await self._preparation.retire(before, model)
        finally:
            self._forget(before)

    def _forget(self, model: ModelVersion) -> None:
        """Unless one of its name and version is there again by now, or about to be."""
        if (model.name, model.version) not in self._reserved and model.version not in self._versions_of(
            model.name
        ):
            self._preparation.forget(model)

    async def _load_and_exchange(
        self, before: ModelVersion, model: ModelVersion, replacement: Replacement
    ) -> ModelVersion:
        try:
            model.pool.scale(model.options.min_workers, model.options.max_workers)
            if (count := worker_count(before, model)) > model.options.min_workers:
                model.pool.resize(count)
            await self._wait(model, model.pool.workers, model.version)
            async with self._lock(model.name):
                self._exchange(before, model)
        except BaseException as error:
            await self._abandon(model)
            self._stays(before, replacement, error)
            raise
        self._reserved.discard((model.name, model.version))
        before.replacement = None
        _log.info("Model %s %s: version %s has taken its place", model.name, before.version, model.version)
        retiring = asyncio.create_task(self._retire(before, model))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        try:
            await self._preparation.settle(before, model)
        except OSError as error:
            _log.error("The model store cannot be tidied up: %s", error)
        await self._changed()
        return model

    def _exchange(self, before: ModelVersion, model: ModelVersion) -> None:
        entry = self._models.get(before.name)
        if entry is None or entry.versions.get(before.version) is not before:
            raise Conflict(f"Model {before.name} {before.version} was unregistered while it was loaded anew")
        if entry.default == before.version:
            entry.default = model.version
        # In its place among the others.
        entry.versions = {
            found.version: found
            for found in (model if each is before else each for each in entry.versions.values())
        }

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
        self._forget(model)

    def _lock(self, name: str) -> asyncio.Lock:
        """One lock per registered name; those of models that are gone are dropped."""
        lock = self._locks.get(name)
        if lock is None:
            self._locks = {n: held for n, held in self._locks.items() if n in self._models or held.locked()}
            lock = self._locks[name] = asyncio.Lock()
        return lock

    # -- start and end

    async def restore(self, saved: Sequence[SavedModel], on_progress: Callable[[str], None]) -> None:
        """Registers what a snapshot names; what cannot be is listed as failed, with the reason (F55).

        Other than TorchServe, which does not start then. Where the archive has another version by now, that
        one takes the place, with a warning. A failed version is the default only where there is no other.
        """
        for item in saved:
            on_progress(f"Restoring {item.name} {item.version}")
            try:
                model = await self._restore_one(item, on_progress)
            except ModelServerError as error:
                _log.error("%s %s cannot be restored: %s", item.name, item.version, error.message)
                if item.version not in self._versions_of(item.name):
                    self._add(self._preparation.failed(item, error.message))
                continue
            if item.default:
                self._models[item.name].default = model.version

    async def _restore_one(self, item: SavedModel, on_progress: Callable[[str], None]) -> ModelVersion:
        model = await self.register(item.registration, at_startup=True, on_progress=on_progress)
        model.loaded_at_startup = True
        sources = {
            option: SNAPSHOT if source == REGISTER else source
            for option, source in model.options.sources.items()
        }
        model.options = replace(model.options, sources=sources)
        if model.version != item.version:
            _log.warning(
                "%s %s was to be restored, %s has version %s now, which takes its place",
                item.name, item.version, item.registration.url, model.version,
            )  # fmt: skip
        return model

    def _versions_of(self, name: str) -> dict[str, ModelVersion]:
        entry = self._models.get(name)
        return {} if entry is None else entry.versions

    def _is_restored(self, registration: Registration) -> bool:
        """Whether a version of this archive, and of the name that is asked for, is there already."""
        file = (registration.url or "").rstrip("/").rpartition("/")[2]
        return any(
            mar_name(model) == file and registration.model_name in (None, model.name)
            for model in self.versions()
            if not isinstance(model, FailedVersion)
        )

    async def load_initial(self, on_progress: Callable[[str], None], *, restored: bool = False) -> list[str]:
        """Registers what the settings name (reference 2.3); what cannot be is logged and left out.

        ``restored``: a snapshot came first; what it brought is not loaded again. Returns a line on each that
        was left out.
        """
        left_out = []
        for registration in await asyncio.to_thread(self._preparation.initial):
            if restored and self._is_restored(registration):
                _log.info("%s was restored already", registration.url)
                continue
            _log.info("Loading initial models: %s", registration.url)
            on_progress(f"Loading {registration.url}")
            try:
                model = await self.register(registration, at_startup=True, on_progress=on_progress)
            except ModelServerError as error:
                _log.error("Failed to load model: %s: %s", registration.url, error.message)
                left_out.append(f"Failed to load model: {registration.url}: {error.message}")
            else:
                model.loaded_at_startup = True
        return left_out

    async def drain(self, grace: float) -> None:
        """Serves what waits, at most ``grace`` seconds; nothing new is taken in."""
        await self._break_off()
        await asyncio.gather(
            *(model.pool.drain(grace) for model in self.versions()), self._wait_retired(grace)
        )

    async def _break_off(self) -> None:
        """No version takes another's place any more."""
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)

    async def _wait_retired(self, grace: float) -> None:
        """Lets replaced versions serve what waits for them, then ends them."""
        if self._retiring:
            _, left = await asyncio.wait(self._retiring, timeout=grace)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def close(self, grace: float) -> None:
        """Ends all workers and removes what was unpacked."""
        await self._break_off()
        await self._wait_retired(0.0)
        models = self.versions()
        await asyncio.gather(*(model.pool.close(grace) for model in models))
        self._models.clear()
        self._preparation.close()
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
