"""The model repository extension: lists, loads and unloads the store's models (kserve reference 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from modelserver.errors import ModelNotFound, StartFailed
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.replacing import load_anew
from modelserver.models.settings.settings import Settings
from modelserver.models.version import ModelVersion


class ModelRepository:
    """The models of the store, which are named like their files, without suffixes."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings

    async def list(self, *, only_ready: bool) -> list[dict[str, str]]:
        """The registered versions with their states, and the store's other models, which are unloaded."""
        models = self._registry.versions()
        entries = [_entry(model) for model in models]
        taken = {model.name for model in models}
        used = {file_of(model.url) for model in models}
        stored = await self._registry.builder.store.by_name()
        entries += [
            {"name": name, "state": "UNAVAILABLE", "reason": "unloaded"}
            for name, file in sorted(stored.items())
            if name not in taken and file not in used
        ]
        return [entry for entry in entries if entry["state"] == "READY" or not only_ready]

    async def load(self, name: str) -> None:
        """Loads or reloads a model from the store, and waits for its workers.

        Raises:
            ModelNotFound: the store has no such model.
            ModelServerError: it cannot be loaded; what was loaded before keeps serving (F52).
        """
        registry, settings = self._registry, self._settings
        store = registry.builder.store
        demands = [each for model in self._versions(name) if (each := model.pool.crew.on_demand) is not None]
        for demand in demands:
            await demand.load()
        if demands:
            return
        before = registry.get(name) if name in registry.names() else None
        if before is not None and store.is_remote(before.url):
            url: str | None = before.url
        else:
            stored = await store.by_name()
            url = stored.get(name)
            if before is not None:
                file = file_of(before.url)
                url = file if file in stored.values() else stored.get(name, before.url)
        if url is None:
            raise ModelNotFound.named(name, stored if settings.tells_names else None)
        workers = settings.default_workers_per_model or 1
        registration = Registration(url=url, model_name=name, initial_workers=workers)
        try:
            if before is not None:
                await load_anew(registry, before, registration)
            else:
                model = await registry.register(registration)
                await registry.wait_loaded(model)
                if (on_demand := model.pool.crew.on_demand) is not None:
                    await on_demand.load()
        except StartFailed as error:
            error.kserve_status = 503
            error.kserve_message = f"Model with name {name} is not ready. {error.message}"
            raise

    async def unload(self, name: str) -> None:
        """Unregisters all versions of a model, or parks them. Raises ModelNotFound, Conflict if busy."""
        demands = [each for model in self._versions(name) if (each := model.pool.crew.on_demand) is not None]
        for demand in demands:
            demand.park()
        if demands:
            return
        for model in sorted(self._registry.versions(name), key=self._registry.is_default):
            await self._registry.unregister(name, model.version)

    def _versions(self, name: str) -> Sequence[ModelVersion]:
        """The versions of a model, none if it is not registered."""
        return self._registry.versions(name) if name in self._registry.names() else []


def _entry(model: ModelVersion) -> dict[str, str]:
    statistics = model.pool.statistics()
    state, reason = "READY", ""
    if not model.pool.workers and model.pool.ready:
        reason = "parked"
    elif not statistics.ready:
        state = "LOADING" if statistics.loading else "UNAVAILABLE"
        on_demand = model.pool.crew.on_demand
        refusal = None if on_demand is None else on_demand.refusal
        failure = model.pool.failure or ("" if refusal is None else refusal.message)
        reason = failure or ("" if statistics.loading else "it has no workers")
    return {"name": model.name, "version": model.version, "state": state, "reason": reason}


def file_of(url: str) -> str:
    """The file of the store that a model registered with this URL was loaded from."""
    return PurePosixPath(url.partition("?")[0].rstrip("/")).name
