"""Registers the versions of a snapshot before the models that the settings name."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from modelserver.errors import BadRequest, ConfigError, ModelServerError
from modelserver.ext.snapshots.document import Saved, SavedModel
from modelserver.ext.snapshots.files import SnapshotFolder, had_all
from modelserver.extension import Host
from modelserver.models.archives.urls import scheme
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")


class Restoring:
    """Restores ``configured``, the state in the settings, or else the newest snapshot of the folder."""

    def __init__(self, host: Host, configured: Saved, folder: SnapshotFolder | None) -> None:
        self._host = host
        self._configured = configured
        self._folder = folder

    async def load(self, listing: Callable[[], Awaitable[Sequence[Registration]]]) -> Sequence[Registration]:
        """Restores, and returns which models of the settings are still to be loaded (design, section 9)."""
        settings, registry = self._host.settings, self._host.registry
        is_configured = settings.model_snapshot is not None
        decides = settings.load_all and is_configured
        saved, origin = self._configured.models, registry.builder.sources["model_snapshot"]
        folder = None if is_configured or settings.as_torchserve else self._folder
        if folder and (newest := await asyncio.to_thread(folder.newest, registry.router.check)):
            path, (saved, workflows) = newest
            origin = str(path)
            decides = settings.load_all and await asyncio.to_thread(had_all, path)
            registry.workflows.update(workflows)
        alone = settings.as_torchserve and is_configured
        if saved:
            also = "" if alone or decides else ",".join(map(str, settings.load_models))
            text = "Restoring %d model versions from %s; also loading, unless restored: %s"
            _log.info(text, len(saved), origin, also or "nothing")
            await self._restore(saved)
            self._report(f"Restored from {origin}: {_listed(registry.versions())}")
        if alone:
            return []
        registrations = await listing()
        if decides:
            self._report_left_out(registrations, saved)
            return []
        return [each for each in registrations if not (saved and _is_restored(registry, each))]

    def _report_left_out(self, registrations: Iterable[Registration], saved: Iterable[SavedModel]) -> None:
        """Reports the archives that the state does not have: ``load_models=all`` adds nothing to one that was
        saved with it, so that models that were unregistered stay away.
        """
        known = {(item.registration.url or "").rstrip("/").rpartition("/")[2] for item in saved}
        names = [item.url for item in registrations if item.url is not None and item.url not in known]
        if names:
            self._report(
                "Not loaded, as the restored state does not have them: "
                f"{textwrap.shorten(', '.join(names), 2000)}. To load them, register them "
                f"(POST /models?url={names[0]}), name them (--models {names[0]}), "
                "or start with --ncs, which loads all."
            )

    def _report(self, text: str) -> None:
        _log.info("%s", text)
        self._host.notice(text)

    async def _restore(self, saved: Sequence[SavedModel]) -> None:
        """Registers the versions of a snapshot; failures are listed with their reason (F55).

        If the archive now has a different version, that one is registered instead, with a warning. A failed
        version is only the default if there is no other.
        """
        registry, progress = self._host.registry, self._host.progress
        archives = registry.builder.opening((item.registration for item in saved), progress)
        for item, opening in zip(saved, archives, strict=True):
            progress(f"Restoring {item.name} {item.version}")
            try:
                model = await registry.register(
                    item.registration, at_startup=True, on_progress=progress, opening=opening
                )
            except ModelServerError as error:
                name, version, reason = item.name, item.version, error.message
                _log.error("%s %s cannot be restored: %s", name, version, reason)
                if (name, version) not in registry:
                    registry.add(registry.builder.failed(name, version, item.registration, reason))
                continue
            model.options = model.options.restored()
            if item.downloaded and isinstance(store := self._host.settings.model_store, Path):
                model.archive = replace(model.archive, downloaded=store / model.mar_name)
            if model.version != item.version:
                text = "%s %s could not be restored as %s now has version %s, which was registered instead"
                _log.warning(text, item.name, item.version, item.registration.url, model.version)
            if item.default:
                await registry.set_default(item.name, model.version)
        self._restore_traffic(saved)

    def _restore_traffic(self, saved: Sequence[SavedModel]) -> None:
        """What the snapshot says of the traffic holds, not what the files of the models say."""
        registry = self._host.registry
        plans = {item.name: item.traffic for item in saved if item.traffic is not None}
        for name in dict.fromkeys(item.name for item in saved):
            if name not in registry.names():
                continue
            try:
                registry.router.direct(name, plans.get(name))
            except BadRequest as error:
                _log.warning("The traffic of %s is not restored: %s", name, error.message)


def check_archives(saved: Iterable[SavedModel], store: Path | None) -> None:
    """Raises ConfigError for the first version whose archive is not in the model store."""
    for model in saved:
        url = model.registration.url or ""
        if scheme(url) or store is None:
            continue
        name = url.rstrip("/").rpartition("/")[2]
        if not any((store / each).exists() for each in (name, name.partition("?")[0])):
            raise ConfigError(
                f"Model archive file for model :{model.name}, version :{model.version} "
                f"not found in model store: {url}"
            )


def _is_restored(registry: Registry, registration: Registration) -> bool:
    """Whether a version of this archive and name is already registered."""
    file = (registration.url or "").rstrip("/").rpartition("/")[2]
    is_restored = any(
        model.mar_name == file and registration.model_name in (None, model.name)
        for model in registry.versions()
        if not model.failure
    )
    if is_restored:
        _log.info("%s was already restored", registration.url)
    return is_restored


def _listed(models: Iterable[ModelVersion]) -> str:
    """Names and versions as text, with the reasons of failures."""
    return "; ".join(
        f"{model.name} {model.version}"
        + (f" FAILED ({textwrap.shorten(model.failure, 200)})" if model.failure else "")
        for model in models
    )
